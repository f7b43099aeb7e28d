package bstar

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The part of ZMTP 3.1 (https://rfc.zeromq.org/spec/37/) that a DEALER needs which connects to one ROUTER, with the
// mechanisms NULL and CURVE. Nothing is queued for a peer without a connection, and a broken connection is an error at
// once: the sessions decide what is sent again. docs/adr/0036-zmtp-in-go.md says why this is no library.

const (
	connectTimeout   = time.Second
	handshakeTimeout = 2 * time.Second
	// A connection that is given up in good order waits so long for the peer to have read everything.
	lingerTimeout   = time.Second
	messageBytesMax = 64 << 20
	framesMax       = 65_536
	commandBytesMax = 4096
)

const (
	frameMore    = 0x01
	frameLong    = 0x02
	frameCommand = 0x04
)

// connection is one connection to a node. Sending never waits; one goroutine receives.
type connection struct {
	socket net.Conn
	reader *bufio.Reader
	curve  *curveTransport // nil: NULL
	ending sync.Once

	lock       sync.Mutex
	pending    []byte
	isFinished bool
	wake       chan struct{}
	closed     chan struct{}
	// Set once the peer has proved useful; a link resets its pause then.
	isProven atomic.Bool
}

// dial connects to "tcp://host:port" or "ipc://path". keys is nil without CURVE.
func dial(ctx context.Context, endpoint string, keys *nodeKeys, routingID []byte) (*connection, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: connectTimeout}
	socket, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &connection{
		socket: socket, reader: bufio.NewReaderSize(socket, 1<<16),
		wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	stop := context.AfterFunc(ctx, func() { socket.Close() })
	defer stop()
	socket.SetDeadline(time.Now().Add(handshakeTimeout))
	if err := c.handshake(keys, routingID); err != nil {
		socket.Close()
		return nil, fmt.Errorf("handshake with %s: %w", endpoint, err)
	}
	socket.SetDeadline(time.Time{})
	go c.write()
	return c, nil
}

func splitEndpoint(endpoint string) (network, address string, err error) {
	if address, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		_, _, err := net.SplitHostPort(address)
		return "tcp", address, err
	}
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		return "unix", path, nil
	}
	return "", "", fmt.Errorf("%q is no endpoint: write tcp://host:port or ipc://path", endpoint)
}

// --- handshake -----------------------------------------------------------------------------------------------------

func (c *connection) handshake(keys *nodeKeys, routingID []byte) error {
	mechanism := "NULL"
	if keys != nil {
		mechanism = "CURVE"
	}
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10], greeting[11] = 0xFF, 0x7F, 3, 1
	copy(greeting[12:], mechanism)
	if _, err := c.socket.Write(greeting); err != nil {
		return err
	}
	theirs := make([]byte, 64)
	if _, err := io.ReadFull(c.reader, theirs); err != nil {
		return err
	}
	if theirs[0] != 0xFF || theirs[9] != 0x7F || theirs[10] < 3 {
		return errors.New("the peer speaks no ZMTP 3")
	}
	if named := string(bytes.TrimRight(theirs[12:32], "\x00")); named != mechanism {
		return fmt.Errorf("this side has mechanism %s, the peer %q: check the keys of each side", mechanism, named)
	}
	metadata := appendProperty(nil, "Socket-Type", []byte("DEALER"))
	metadata = appendProperty(metadata, "Identity", routingID)
	if keys != nil {
		curve, err := c.curveHandshake(keys, metadata)
		c.curve = curve
		return err
	}
	if _, err := c.socket.Write(appendFrame(nil, frameCommand, append([]byte("\x05READY"), metadata...))); err != nil {
		return err
	}
	_, err := c.handshakeCommand("READY")
	return err
}

func appendProperty(to []byte, name string, value []byte) []byte {
	to = append(append(to, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(to, uint32(len(value))), value...)
}

// handshakeCommand receives the command of this name; its body.
func (c *connection) handshakeCommand(name string) ([]byte, error) {
	flags, body, err := c.readFrame(commandBytesMax)
	if err != nil {
		return nil, err
	}
	named, rest := splitCommand(body)
	if flags&frameCommand == 0 || named != name {
		return nil, fmt.Errorf("the peer answered %q in place of %s", named, name)
	}
	return rest, nil
}

func splitCommand(body []byte) (name string, rest []byte) {
	if len(body) < 1 || len(body) < 1+int(body[0]) {
		return "", nil
	}
	end := 1 + int(body[0])
	return string(body[1:end]), body[end:]
}

// --- receiving -----------------------------------------------------------------------------------------------------

// receive returns the next message. It answers PING.
func (c *connection) receive() ([][]byte, error) {
	var message [][]byte
	size := 0
	for {
		bytesMax := messageBytesMax - size
		if c.curve != nil {
			bytesMax += curveOverhead
		}
		flags, body, err := c.readFrame(bytesMax)
		if err == nil && c.curve != nil {
			flags, body, err = c.curve.open(body)
		}
		if err != nil {
			return nil, err
		}
		if flags&frameCommand != 0 {
			if name, rest := splitCommand(body); name == "PING" && len(rest) >= 2 {
				c.sendCommand("PONG", rest[2:min(len(rest), 18)])
			}
			continue
		}
		message = append(message, body)
		size += len(body)
		if flags&frameMore == 0 {
			return message, nil
		}
		if len(message) >= framesMax {
			return nil, fmt.Errorf("a message of more than %d frames", framesMax)
		}
	}
}

func (c *connection) readFrame(bytesMax int) (flags byte, body []byte, err error) {
	if flags, err = c.reader.ReadByte(); err != nil {
		return 0, nil, err
	}
	var length uint64
	if flags&frameLong != 0 {
		var octets [8]byte
		_, err = io.ReadFull(c.reader, octets[:])
		length = binary.BigEndian.Uint64(octets[:])
	} else {
		var octet byte
		octet, err = c.reader.ReadByte()
		length = uint64(octet)
	}
	if err != nil {
		return 0, nil, err
	}
	if length > uint64(bytesMax) {
		return 0, nil, fmt.Errorf("a frame of %d bytes where %d may come", length, bytesMax)
	}
	body = make([]byte, length)
	_, err = io.ReadFull(c.reader, body)
	return flags, body, err
}

// --- sending -------------------------------------------------------------------------------------------------------

// send queues a message. What is queued when the connection breaks is lost, as it is on the way.
func (c *connection) send(message [][]byte) {
	c.lock.Lock()
	defer c.lock.Unlock()
	for number, frame := range message {
		var flags byte
		if number < len(message)-1 {
			flags = frameMore
		}
		c.queue(flags, frame)
	}
	c.ring()
}

func (c *connection) sendCommand(name string, body []byte) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.queue(frameCommand, append(append([]byte{byte(len(name))}, name...), body...))
	c.ring()
}

// ping sends ZMTP's PING: the peer ends the connection if nothing more comes within the time to live.
func (c *connection) ping(timeToLive time.Duration) {
	c.sendCommand("PING", binary.BigEndian.AppendUint16(nil, uint16(timeToLive/(100*time.Millisecond))))
}

func (c *connection) queue(flags byte, body []byte) {
	if c.curve != nil {
		flags, body = 0, c.curve.seal(flags, body)
	}
	c.pending = appendFrame(c.pending, flags, body)
}

func appendFrame(to []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		to = binary.BigEndian.AppendUint64(append(to, flags|frameLong), uint64(len(body)))
	} else {
		to = append(to, flags, byte(len(body)))
	}
	return append(to, body...)
}

func (c *connection) ring() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *connection) write() {
	var spare []byte
	for {
		select {
		case <-c.wake:
		case <-c.closed:
			return
		}
		c.lock.Lock()
		out, isLast := c.pending, c.isFinished
		c.pending = spare[:0]
		c.lock.Unlock()
		if _, err := c.socket.Write(out); err != nil {
			c.close()
			return
		}
		spare = out
		if cap(spare) > 1<<20 {
			spare = nil
		}
		if isLast {
			c.socket.SetReadDeadline(time.Now().Add(lingerTimeout))
			if half, ok := c.socket.(interface{ CloseWrite() error }); ok {
				half.CloseWrite()
			}
			return
		}
	}
}

// finish sends what is queued, then ends the connection; the receiver sees its end.
func (c *connection) finish() {
	c.lock.Lock()
	c.isFinished = true
	c.lock.Unlock()
	c.ring()
}

// close ends the connection at once. Twice is fine.
func (c *connection) close() {
	c.ending.Do(func() {
		close(c.closed)
		c.socket.Close()
	})
}
