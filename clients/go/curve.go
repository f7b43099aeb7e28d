package bstar

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"golang.org/x/crypto/curve25519"
	"golang.org/x/crypto/nacl/box"
)

// CURVE of ZMTP (https://rfc.zeromq.org/spec/25/ and /26/), the client's half. The cryptography is that of
// golang.org/x/crypto.

// Security is this program's key and the public keys of the nodes.
type Security struct {
	public, secret [32]byte
	nodes          [][32]byte
}

// nodeKeys is what one connection needs.
type nodeKeys struct{ public, secret, node [32]byte }

// LoadSecurity reads keyFile (NAME.key, as `bstar keys new` makes it) and the nodes' public keys (NAME.pub), in the
// order of the endpoints.
func LoadSecurity(keyFile string, nodeFiles ...string) (*Security, error) {
	own, err := readKeyFile(keyFile)
	if err != nil {
		return nil, err
	}
	found, err := os.Stat(keyFile)
	if err != nil {
		return nil, err
	}
	if found.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: others may read this secret key: chmod 600 %s", keyFile, keyFile)
	}
	s := &Security{public: own["public"], secret: own["secret"]}
	if derived, err := curve25519.X25519(s.secret[:], curve25519.Basepoint); err != nil || !bytes.Equal(derived, s.public[:]) {
		return nil, fmt.Errorf("%s: needs a public and a secret half that belong together", keyFile)
	}
	for _, file := range nodeFiles {
		node, err := readKeyFile(file)
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, node["public"])
	}
	return s, nil
}

// of returns what a connection to a node needs; nil without keys.
func (s *Security) of(node int) *nodeKeys {
	if s == nil {
		return nil
	}
	return &nodeKeys{s.public, s.secret, s.nodes[node]}
}

var keyLine = regexp.MustCompile(`^(public|secret):[ \t]*(\S{40})[ \t]*$`)

func readKeyFile(path string) (map[string][32]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	halves := map[string][32]byte{}
	for line := range strings.Lines(string(text)) {
		if found := keyLine.FindStringSubmatch(strings.TrimRight(line, "\r\n")); found != nil {
			key, ok := decodeZ85(found[2])
			if !ok {
				return nil, fmt.Errorf("%s: the %s half is no Z85", path, found[1])
			}
			halves[found[1]] = key
		}
	}
	if _, ok := halves["public"]; !ok {
		return nil, fmt.Errorf("%s: no key file: make one with `bstar keys new NAME`", path)
	}
	return halves, nil
}

const z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

func decodeZ85(text string) (key [32]byte, ok bool) {
	for part := range 8 {
		var value uint64
		for _, letter := range []byte(text[part*5 : part*5+5]) {
			digit := strings.IndexByte(z85, letter)
			if digit < 0 {
				return key, false
			}
			value = value*85 + uint64(digit)
		}
		if value > 0xFFFFFFFF {
			return key, false
		}
		binary.BigEndian.PutUint32(key[part*4:], uint32(value))
	}
	return key, true
}

// curveTransport encrypts the frames of a connection.
type curveTransport struct {
	shared         [32]byte
	sent, received uint64
}

func nonceOf(prefix string, rest []byte) *[24]byte {
	var nonce [24]byte
	copy(nonce[copy(nonce[:], prefix):], rest)
	return &nonce
}

func counter(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }

func (c *connection) curveHandshake(keys *nodeKeys, metadata []byte) (*curveTransport, error) {
	public, secret, err := box.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	// HELLO proves that this side knows the node's key; the zeros make it longer than the answer.
	hello := append([]byte("\x05HELLO\x01\x00"), make([]byte, 72)...)
	hello = append(append(hello, public[:]...), counter(1)...)
	hello = box.Seal(hello, make([]byte, 64), nonceOf("CurveZMQHELLO---", counter(1)), &keys.node, secret)
	if _, err := c.socket.Write(appendFrame(nil, frameCommand, hello)); err != nil {
		return nil, err
	}
	welcome, err := c.handshakeCommand("WELCOME")
	if err != nil {
		return nil, err
	}
	if len(welcome) != 16+144 {
		return nil, errors.New("CURVE: a WELCOME of another length")
	}
	opened, ok := box.Open(nil, welcome[16:], nonceOf("WELCOME-", welcome[:16]), &keys.node, secret)
	if !ok {
		return nil, errors.New("CURVE: the node has another key than the one named")
	}
	var short [32]byte
	copy(short[:], opened)
	t := &curveTransport{sent: 2}
	box.Precompute(&t.shared, &short, secret)
	initiate, err := keys.initiate(t, public, &short, secret, opened[32:], metadata)
	if err != nil {
		return nil, err
	}
	if _, err := c.socket.Write(appendFrame(nil, frameCommand, initiate)); err != nil {
		return nil, err
	}
	ready, err := c.handshakeCommand("READY")
	if err != nil {
		return nil, fmt.Errorf("CURVE: the node does not accept this key: %w", err)
	}
	if len(ready) < 8 {
		return nil, errors.New("CURVE: a short READY")
	}
	if _, ok := box.OpenAfterPrecomputation(nil, ready[8:], nonceOf("CurveZMQREADY---", ready[:8]), &t.shared); !ok {
		return nil, errors.New("CURVE: READY cannot be decrypted")
	}
	t.received = binary.BigEndian.Uint64(ready)
	return t, nil
}

// initiate makes INITIATE: the cookie, and in a box this side's key, its voucher for the short one, and the metadata.
func (k *nodeKeys) initiate(
	t *curveTransport, public, node, secret *[32]byte, cookie, metadata []byte,
) ([]byte, error) {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	voucher := append(public[:len(public):len(public)], k.node[:]...)
	inside := append(k.public[:len(k.public):len(k.public)], random...)
	inside = box.Seal(inside, voucher, nonceOf("VOUCH---", random), node, &k.secret)
	inside = append(inside, metadata...)
	initiate := append(append([]byte("\x08INITIATE"), cookie...), counter(2)...)
	return box.SealAfterPrecomputation(initiate, inside, nonceOf("CurveZMQINITIATE", counter(2)), &t.shared), nil
}

// In a MESSAGE the flag of a command is another bit than in a frame.
const curveCommand = 0x02

// curveOverhead is what a MESSAGE adds to a frame: its name, nonce and flags, and the authentication of the box.
const curveOverhead = len("\x07MESSAGE") + 8 + 1 + box.Overhead

func (t *curveTransport) seal(flags byte, body []byte) []byte {
	inside := flags & frameMore
	if flags&frameCommand != 0 {
		inside |= curveCommand
	}
	t.sent++
	nonce := counter(t.sent)
	message := make([]byte, 0, curveOverhead+len(body))
	message = append(append(message, "\x07MESSAGE"...), nonce...)
	plain := append([]byte{inside}, body...)
	return box.SealAfterPrecomputation(message, plain, nonceOf("CurveZMQMESSAGEC", nonce), &t.shared)
}

func (t *curveTransport) open(message []byte) (flags byte, body []byte, err error) {
	name, rest := splitCommand(message)
	if name != "MESSAGE" || len(message) < curveOverhead {
		return 0, nil, errors.New("CURVE: no MESSAGE")
	}
	number := binary.BigEndian.Uint64(rest)
	plain, ok := box.OpenAfterPrecomputation(nil, rest[8:], nonceOf("CurveZMQMESSAGES", rest[:8]), &t.shared)
	if !ok || number <= t.received {
		return 0, nil, errors.New("CURVE: a MESSAGE that cannot be decrypted, or is older than the last")
	}
	t.received = number
	flags = plain[0] & frameMore
	if plain[0]&curveCommand != 0 {
		flags |= frameCommand
	}
	return flags, plain[1:], nil
}
