package bstar

import (
	"encoding/binary"
	"time"
)

// The layout of messages: docs/protocol/native.md, section 3. Nothing here opens a socket or reads a clock.

const (
	magic, version  = 0xB5, 0x01
	headerBytesMin  = 41
	extensionsMax   = 8192
	serviceBytesMax = 255
	textBytesMax    = 4096
	batchRowsMax    = 1024
	batchBytesMax   = 1 << 20
	epochMax        = 1 << 62
	epochLeap       = 1 << 32
	// A counted message number stays below it: the two highest bits belong to keyed identities.
	numberLimit = 1 << 62
	neverMs     = 0xFFFFFFFF
)

type command byte

const (
	cmdRequest command = 1 + iota
	cmdPartial
	cmdFinal
	cmdError
	cmdBusy
	cmdNotActive
	cmdPing
	cmdPong
	cmdReady
	cmdWelcome
	cmdHeartbeat
	cmdDisconnect
	cmdStaleEpoch
	cmdRequests
	cmdFinals
	cmdCancel
)

const (
	flagRedelivered = 0x01
	flagDispatched  = 0x02
	flagBatches     = 0x04
	flagUrgent      = 0x08
	flagOnce        = 0x10
	flagWhole       = 0x20
	flagUnbegun     = 0x40
	flagExtended    = 0x80
)

// What a node reads, in the last octet of its status.
const (
	canBatches = 0x01
	canOnce    = 0x02
	canCancels = 0x08
)

const stateActive = 3

const (
	codeHandlerFailed = 1 + iota
	codeHandlerTimeout
	codeWorkerLost
	codePoison
	codeExpired
	codeInvalid
	codeNotAllowed
	codeRetry
	codeCancelled
	codeWorkerGone
)

const (
	extensionProcess = 0x05
	extensionForeign = 0x07
	extensionAttempt = 0x41
)

// identity is a client id (16 octets) and a message number (8), or the digest of a key.
type identity [24]byte

func identityOf(client [16]byte, number uint64) (id identity) {
	copy(id[:], client[:])
	binary.BigEndian.PutUint64(id[16:], number)
	return id
}

func (id identity) client() [16]byte { return [16]byte(id[:16]) }
func (id identity) number() uint64   { return binary.BigEndian.Uint64(id[16:]) }

type header struct {
	command    command
	flags      byte
	identity   identity
	epoch      uint64
	value      uint32
	service    string
	extensions []byte
}

func (h *header) encode() []byte {
	frame := make([]byte, 0, headerBytesMin+len(h.service)+len(h.extensions))
	frame = append(frame, magic, version, byte(h.command), h.flags)
	frame = append(frame, h.identity[:]...)
	frame = binary.BigEndian.AppendUint64(frame, h.epoch)
	frame = binary.BigEndian.AppendUint32(frame, h.value)
	frame = append(frame, byte(len(h.service)))
	frame = append(frame, h.service...)
	return append(frame, h.extensions...)
}

func parseHeader(frame []byte) (h header, ok bool) {
	if len(frame) < headerBytesMin || frame[0] != magic || frame[1] != version {
		return h, false
	}
	h.command, h.flags, h.identity = command(frame[2]), frame[3], identity(frame[4:28])
	h.epoch, h.value = binary.BigEndian.Uint64(frame[28:]), binary.BigEndian.Uint32(frame[36:])
	rest := frame[headerBytesMin:]
	length := int(frame[40])
	if len(rest) < length || len(rest)-length > extensionsMax {
		return h, false
	}
	h.service, h.extensions = string(rest[:length]), rest[length:]
	return h, true
}

// extension returns the value of the first extension of a type. A torn one, and what follows it, does not count.
func (h *header) extension(kind byte) (value []byte, ok bool) {
	for rest := h.extensions; len(rest) >= 3; {
		end := 3 + int(binary.BigEndian.Uint16(rest[1:]))
		if end > len(rest) {
			break
		}
		if rest[0] == kind {
			return rest[3:end], true
		}
		rest = rest[end:]
	}
	return nil, false
}

func appendExtension(to []byte, kind byte, value []byte) []byte {
	to = binary.BigEndian.AppendUint16(append(to, kind), uint16(len(value)))
	return append(to, value...)
}

// status is what a node says of itself: section 3.4.
type status struct {
	state, peer               byte
	isNever                   bool // no request turns this node active
	retryAfter                time.Duration
	heartbeat, failoverWindow time.Duration
	can                       byte
}

func parseStatus(frame []byte) (s status, ok bool) {
	if len(frame) < 18 {
		return s, false
	}
	retryMs := binary.BigEndian.Uint32(frame[6:])
	s = status{
		state: frame[0], peer: frame[1], isNever: retryMs == neverMs, retryAfter: fromMs(retryMs),
		heartbeat:      fromMs(binary.BigEndian.Uint32(frame[10:])),
		failoverWindow: fromMs(binary.BigEndian.Uint32(frame[14:])),
	}
	if len(frame) > 18 {
		s.can = frame[18]
	}
	return s, s.heartbeat > 0 && s.failoverWindow > 0 && s.state >= 1 && s.state <= 5 && s.peer <= 5
}

// row is one request or reply of a batch: section 3.8.
type row struct {
	number uint64
	ttlMs  uint32 // of REQUESTS only
	body   []byte
	// The extensions of the request; a client of this package sends none.
	extensions []byte
}

// encodeBatch makes table and blob of rows without extensions.
func encodeBatch(rows []row, hasTTL bool) (table, blob []byte) {
	size := 0
	for _, each := range rows {
		size += len(each.body)
	}
	table, blob = make([]byte, 0, 16*len(rows)), make([]byte, 0, size)
	for _, each := range rows {
		table = binary.BigEndian.AppendUint64(table, each.number)
		if hasTTL {
			table = binary.BigEndian.AppendUint32(table, each.ttlMs)
		}
		table = binary.BigEndian.AppendUint32(table, uint32(len(each.body)))
		blob = append(blob, each.body...)
	}
	return table, blob
}

// parseBatch reads table and blob. Bodies are parts of the blob.
func parseBatch(frames [][]byte, hasTTL bool) (rows []row, ok bool) {
	width := 12
	if hasTTL {
		width = 16
	}
	if len(frames) < 2 || len(frames[0])%width != 0 {
		return nil, false
	}
	table, blob := frames[0], frames[1]
	count := len(table) / width
	if count < 1 || count > batchRowsMax {
		return nil, false
	}
	rows = make([]row, 0, count)
	size := 0
	for ; len(table) > 0; table = table[width:] {
		each := row{number: binary.BigEndian.Uint64(table)}
		length := binary.BigEndian.Uint32(table[width-4:])
		isExtended := hasTTL && length&(1<<31) != 0
		if isExtended {
			length &^= 1 << 31
		}
		if each.number >= numberLimit || int64(length) > int64(len(blob)) {
			return nil, false
		}
		each.body, blob = blob[:length:length], blob[length:]
		if isExtended {
			if length < 2 {
				return nil, false
			}
			end := 2 + int(binary.BigEndian.Uint16(each.body))
			if end > len(each.body) || end > 2+extensionsMax {
				return nil, false
			}
			each.extensions, each.body = each.body[2:end], each.body[end:]
		}
		if hasTTL {
			each.ttlMs = binary.BigEndian.Uint32(table[8:])
		}
		size += len(each.body)
		rows = append(rows, each)
	}
	return rows, len(blob) == 0 && size <= batchBytesMax && areDifferent(rows)
}

func areDifferent(rows []row) bool {
	seen := make(map[uint64]struct{}, len(rows))
	for _, each := range rows {
		seen[each.number] = struct{}{}
	}
	return len(seen) == len(rows)
}

func fromMs(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// toMs rounds up: what is left of a time is not yet over.
func toMs(d time.Duration) uint32 {
	return uint32(min(max((d+time.Millisecond-1)/time.Millisecond, 0), neverMs-1))
}

func cut(text string) []byte { return []byte(text[:min(len(text), textBytesMax)]) }
