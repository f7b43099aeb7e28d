package bstar

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"testing"

	"golang.org/x/crypto/nacl/box"
)

// heard is a socket whose peer sent these bytes and then left.
type heard struct {
	net.Conn
	bytes.Reader
}

func (h *heard) Read(into []byte) (int, error)     { return h.Reader.Read(into) }
func (h *heard) Write(written []byte) (int, error) { return len(written), nil }
func (h *heard) Close() error                      { return nil }

func hearing(sent []byte) *connection {
	h := &heard{}
	h.Reset(sent)
	return &connection{
		socket: h, reader: bufio.NewReader(h), wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

// sealed is a frame as a node sends it with CURVE.
func sealed(number uint64, flags byte, body []byte, shared *[32]byte) []byte {
	nonce := counter(number)
	message := append([]byte("\x07MESSAGE"), nonce...)
	plain := append([]byte{flags}, body...)
	return box.SealAfterPrecomputation(message, plain, nonceOf("CurveZMQMESSAGES", nonce), shared)
}

func greeting(mechanism string) []byte {
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xFF, 0x7F, 3
	copy(greeting[12:], mechanism)
	return greeting
}

func TestTheLargestReplyOfAWorkerFitsWithCurveToo(t *testing.T) {
	if testing.Short() {
		t.Skip("64 MiB")
	}
	header, body := make([]byte, headerBytesMin), make([]byte, messageBytesMax-headerBytesMin)
	plain := hearing(appendFrame(appendFrame(nil, frameMore, header), 0, body))
	shared := [32]byte{1}
	sent := appendFrame(nil, 0, sealed(1, frameMore, header, &shared))
	secret := hearing(appendFrame(sent, 0, sealed(2, 0, body, &shared)))
	secret.curve = &curveTransport{shared: shared}
	for name, c := range map[string]*connection{"NULL": plain, "CURVE": secret} {
		if got, err := c.receive(); err != nil || len(got) != 2 || len(got[1]) != len(body) {
			t.Errorf("%s: %d frames, %v", name, len(got), err)
		}
	}
}

func FuzzWhatANodeSends(f *testing.F) {
	ready := appendFrame(nil, frameCommand, appendProperty([]byte("\x05READY"), "Socket-Type", []byte("ROUTER")))
	ping := appendFrame(nil, frameCommand, []byte("\x04PING\x00\x0Acontext"))
	message := appendFrame(appendFrame(nil, frameMore, []byte("one")), 0, bytes.Repeat([]byte("2"), 300))
	f.Add(slices.Concat(greeting("NULL"), ready, ping, message))
	f.Add(append(greeting("CURVE"), appendFrame(nil, frameCommand, append([]byte("\x07WELCOME"), make([]byte, 160)...))...))
	f.Fuzz(func(t *testing.T, sent []byte) {
		c := hearing(sent)
		var keys *nodeKeys
		if len(sent) > 12 && sent[12] == 'C' {
			keys = &nodeKeys{}
		}
		if c.handshake(keys, nil) != nil {
			return
		}
		for {
			frames, err := c.receive()
			if err != nil {
				return
			}
			if len(frames) < 1 || len(frames) > framesMax || len(slices.Concat(frames...)) > len(sent) {
				t.Fatal(len(frames))
			}
		}
	})
}

func FuzzWhatANodeSendsWithCurve(f *testing.F) {
	shared := [32]byte{1}
	f.Add(sealed(1, 0, []byte("body"), &shared), []byte("\x04PING\x00\x0Acontext"), byte(curveCommand))
	f.Fuzz(func(t *testing.T, message, inside []byte, flags byte) {
		c := hearing(appendFrame(appendFrame(nil, 0, sealed(1, flags, inside, &shared)), 0, message))
		c.curve = &curveTransport{shared: shared}
		for {
			if _, err := c.receive(); err != nil {
				return
			}
		}
	})
}
