package bstar

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// The worker's machine: its registration at each node, the epoch that it obeys, and the requests that it holds
// (docs/protocol/native.md, section 6). It opens no socket, runs no handler and asks for no time. Its owner carries out
// sends and hangUps, begins keepalives, and executes starts.

// Used until a WELCOME.
const welcomeTimeout = 5 * time.Second

// task is one request that this worker executes.
type task struct {
	request    *Request
	node       int
	connection int // its number: an answer goes to no other
	epoch      uint64
	isBatched  bool
	isCanceled bool
	cancel     func()
}

type workerNode struct {
	isConnected, isRegistered, isLeft bool
	connection                        int
	keepalive                         identity
	heartbeat, expiry                 time.Duration
	heardAt, sentAt                   time.Time
	can                               byte
	tasks                             map[identity]*task // begun, without an answer
	finals                            map[finalsKind]*batch
}

// finalsKind is what the replies of one FINALS have in common.
type finalsKind struct {
	client [16]byte
	epoch  uint64
}

type keepalive struct {
	node       int
	routingID  identity
	timeToLive time.Duration
}

type news struct {
	node int
	text string
}

type workerSession struct {
	service    string
	credit     int
	name       [20]byte // with which its keepalives begin (BSN-W-23)
	process    []byte
	nodes      []workerNode
	executing  int
	number     int // of connections
	obeyed     uint64
	obeyedNode int
	claimedAt  time.Time // when a node claimed it, or a higher one, last
	isStopping bool
	expectedAt time.Time

	sends      []message
	hangUps    []int
	starts     []*task
	keepalives []keepalive
	news       []news // for the log
}

func newWorkerSession(count int, service string, credit int, name [20]byte, process []byte) *workerSession {
	return &workerSession{
		service: service, credit: credit, name: name, process: process, nodes: make([]workerNode, count),
	}
}

func (s *workerSession) connected(node int, now time.Time) {
	s.number++
	// A connection that this machine gave up has ended by itself, if there is a next one already.
	s.hangUps = slices.DeleteFunc(s.hangUps, func(each int) bool { return each == node })
	n := &s.nodes[node]
	*n = workerNode{
		isConnected: true, connection: s.number, heardAt: now, expiry: welcomeTimeout,
		tasks: map[identity]*task{}, finals: map[finalsKind]*batch{},
	}
	if s.isStopping {
		s.leave(node, now)
		return
	}
	copy(n.keepalive[:], s.name[:])
	binary.BigEndian.PutUint32(n.keepalive[20:], uint32(s.number))
	extensions := appendExtension(nil, extensionProcess, s.process)
	extensions = appendExtension(extensions, extensionForeign, binary.BigEndian.AppendUint32(nil, uint32(s.executing)))
	s.send(node, header{
		command: cmdReady, flags: flagBatches | flagExtended, identity: n.keepalive, value: uint32(s.credit),
		service: s.service, extensions: extensions,
	}, now)
}

// disconnected: the broker gives what this connection brought to others.
func (s *workerSession) disconnected(node int) {
	if s.nodes[node].isRegistered {
		s.news = append(s.news, news{node, "the registration is lost"})
	}
	s.nodes[node] = workerNode{}
}

func (s *workerSession) hangUp(node int) {
	s.hangUps = append(s.hangUps, node)
	s.disconnected(node)
}

// --- what nodes send -----------------------------------------------------------------------------------------------

func (s *workerSession) receive(node int, frames [][]byte, now time.Time) {
	h, ok := parseHeader(frames[0])
	n := &s.nodes[node]
	if !ok || !n.isConnected || n.isLeft {
		return
	}
	n.heardAt = now
	body := frames[1:]
	switch h.command {
	case cmdWelcome:
		s.welcome(node, &h, body, now)
	case cmdHeartbeat:
		if h.value == stateActive {
			s.claim(node, h.epoch, now)
		}
	case cmdDisconnect:
		s.news = append(s.news, news{node, "the node ended the registration: " + reasonOf(h.value)})
		s.hangUp(node)
	case cmdRequest:
		if len(body) > 0 {
			s.claim(node, h.epoch, now)
			s.begin(node, &h, h.identity, h.value, body, now, false)
		}
	case cmdRequests:
		if rows, ok := parseBatch(body, true); ok {
			s.claim(node, h.epoch, now)
			for _, each := range rows {
				h.extensions = each.extensions
				ttlMs := each.ttlMs
				if ttlMs > 0 { // 0 stays "no limit"; h.value has passed of the others
					ttlMs = max(1, ttlMs-min(ttlMs, h.value))
				}
				s.begin(node, &h, identityOf(h.identity.client(), each.number), ttlMs, [][]byte{each.body}, now, true)
			}
		}
	case cmdCancel:
		if t := n.tasks[h.identity]; t != nil {
			t.isCanceled = true
			t.cancel()
		}
	}
}

func reasonOf(reason uint32) string {
	names := []string{"GOODBYE", "UNKNOWN", "UNEXPECTED", "INVALID", "RESERVED", "FULL", "NOT_ALLOWED"}
	if int(reason) < len(names) {
		return names[reason]
	}
	return fmt.Sprintf("reason %d", reason)
}

func (s *workerSession) welcome(node int, h *header, body [][]byte, now time.Time) {
	if len(body) < 2 || len(body[1]) < 4 || h.value == 0 {
		return
	}
	told, ok := parseStatus(body[0])
	expiry := fromMs(binary.BigEndian.Uint32(body[1]))
	if !ok || expiry <= 0 {
		return
	}
	n := &s.nodes[node]
	n.isRegistered, n.heartbeat, n.expiry, n.can = true, fromMs(h.value), expiry, told.can
	s.news = append(s.news, news{node, "registered"})
	// The wire has tenths of a second; PING comes three times within it.
	if timeToLive := (expiry * 3 / 4).Truncate(100 * time.Millisecond); timeToLive > 0 {
		s.keepalives = append(s.keepalives, keepalive{node, n.keepalive, timeToLive})
	}
	if told.state == stateActive {
		s.claim(node, h.epoch, now)
	}
}

// claim: a node says that it is active under an epoch. The worker obeys the highest (section 3.2, BSN-W-14).
func (s *workerSession) claim(node int, epoch uint64, now time.Time) {
	if epoch == 0 || epoch > epochMax {
		return
	}
	isStranded := s.obeyed > epoch && s.obeyed-epoch > epochLeap && now.Sub(s.claimedAt) > s.nodes[node].expiry
	if epoch < s.obeyed && !isStranded {
		return
	}
	isNew := epoch != s.obeyed
	s.obeyed, s.obeyedNode, s.claimedAt = epoch, node, now
	if isNew {
		for each := range s.nodes {
			s.sendHeartbeat(each, now)
		}
	}
}

func (s *workerSession) begin(
	node int, h *header, id identity, ttlMs uint32, frames [][]byte, now time.Time, isBatched bool,
) {
	n := &s.nodes[node]
	if h.epoch < s.obeyed {
		s.send(node, header{command: cmdStaleEpoch, identity: id}, now)
		return
	}
	if s.isStopping {
		return // its DISCONNECT gives it back
	}
	t := &task{node: node, connection: n.connection, epoch: h.epoch, isBatched: isBatched, cancel: func() {}}
	t.request = &Request{
		Service: s.service, Frames: frames, Identity: [24]byte(id), IsRedelivered: h.flags&flagRedelivered != 0, Attempt: 1,
	}
	if ttlMs > 0 {
		t.request.deadline = now.Add(fromMs(ttlMs))
	}
	if attempt, ok := h.extension(extensionAttempt); ok && len(attempt) == 2 {
		t.request.Attempt = int(binary.BigEndian.Uint16(attempt))
	}
	n.tasks[id] = t
	s.executing++
	s.starts = append(s.starts, t)
}

// --- what handlers answer ------------------------------------------------------------------------------------------

// answer is what becomes of a task: a body, or an ERROR.
type answer struct {
	body [][]byte
	code uint32 // 0: FINAL
}

func (s *workerSession) finish(t *task, a answer, now time.Time) {
	s.executing--
	n := &s.nodes[t.node]
	id := identity(t.request.Identity)
	isThere := n.connection == t.connection && !n.isLeft
	if isThere {
		delete(n.tasks, id)
		switch {
		case a.code != 0:
			s.answer(t, header{command: cmdError, value: a.code}, a.body, now)
		case t.isBatched && n.can&canBatches != 0 && len(a.body) == 1 && len(a.body[0]) <= batchBytesMax:
			s.addFinal(t, a.body[0], now)
		default:
			s.answer(t, header{command: cmdFinal}, a.body, now)
		}
	}
	if !isThere || t.node != s.obeyedNode {
		s.sendHeartbeat(s.obeyedNode, now) // it counts what other connections brought (BSN-W-24)
	}
}

func (s *workerSession) answer(t *task, h header, body [][]byte, now time.Time) {
	h.identity, h.epoch = identity(t.request.Identity), t.epoch
	s.sendAs(t.node, h, now, body...)
}

func (s *workerSession) addFinal(t *task, body []byte, now time.Time) {
	id := identity(t.request.Identity)
	kind := finalsKind{id.client(), t.epoch}
	finals := s.nodes[t.node].finals
	b := finals[kind]
	if b != nil && (len(b.rows) == batchRowsMax || b.size+len(body) > batchBytesMax) {
		s.sendFinals(t.node, kind, now)
		b = nil
	}
	if b == nil {
		b = &batch{}
		finals[kind] = b
	}
	b.rows, b.size = append(b.rows, row{number: id.number(), body: body}), b.size+len(body)
}

// step sends the replies that are ready together, and leaves nodes that have all answers of a worker that stops.
func (s *workerSession) step(now time.Time) {
	for node := range s.nodes {
		n := &s.nodes[node]
		for kind := range n.finals {
			s.sendFinals(node, kind, now)
		}
		if s.isStopping && n.isConnected && !n.isLeft && len(n.tasks) == 0 {
			s.leave(node, now)
		}
	}
}

func (s *workerSession) sendFinals(node int, kind finalsKind, now time.Time) {
	rows := s.nodes[node].finals[kind].rows
	delete(s.nodes[node].finals, kind)
	h := header{command: cmdFinals, identity: identityOf(kind.client, 0), epoch: kind.epoch}
	if len(rows) == 1 {
		h.command, h.identity = cmdFinal, identityOf(kind.client, rows[0].number)
		s.sendAs(node, h, now, rows[0].body)
		return
	}
	table, blob := encodeBatch(rows, false)
	s.sendAs(node, h, now, table, blob)
}

// leave says goodbye; UNBEGUN says that no request of this connection without an answer was begun (BSN-W-12).
func (s *workerSession) leave(node int, now time.Time) {
	n := &s.nodes[node]
	h := header{command: cmdDisconnect}
	if len(n.tasks) == 0 {
		h.flags = flagUnbegun
	}
	n.isLeft = true
	s.send(node, h, now)
}

func (s *workerSession) stop(now time.Time) {
	s.isStopping = true
	s.step(now)
}

// isDone: a worker that stops has finished all that it began.
func (s *workerSession) isDone() bool { return s.isStopping && s.executing == 0 }

// abandon ends a drain whose time is over.
func (s *workerSession) abandon(now time.Time) {
	for node := range s.nodes {
		if n := &s.nodes[node]; n.isConnected && !n.isLeft {
			s.leave(node, now)
		}
	}
}

// --- time ----------------------------------------------------------------------------------------------------------

func (s *workerSession) handleTimer(now time.Time) {
	if !s.expectedAt.IsZero() && now.Sub(s.expectedAt) > time.Second {
		for node := range s.nodes { // this process was away: what the nodes sent meanwhile waits to be read
			s.nodes[node].heardAt = now
		}
	}
	for node := range s.nodes {
		n := &s.nodes[node]
		if !n.isConnected || n.isLeft {
			continue
		}
		if !now.Before(n.heardAt.Add(n.expiry)) {
			s.news = append(s.news, news{node, "the node is silent"})
			s.hangUp(node)
		} else if n.isRegistered && !now.Before(n.sentAt.Add(n.heartbeat)) {
			s.sendHeartbeat(node, now)
		}
	}
}

func (s *workerSession) nextDeadline(now time.Time) time.Time {
	at := now.Add(time.Minute)
	for node := range s.nodes {
		if n := &s.nodes[node]; n.isConnected && !n.isLeft {
			at = earlier(at, n.heardAt.Add(n.expiry))
			if n.isRegistered {
				at = earlier(at, n.sentAt.Add(n.heartbeat))
			}
		}
	}
	s.expectedAt = at
	return at
}

func (s *workerSession) sendHeartbeat(node int, now time.Time) {
	if n := &s.nodes[node]; n.isRegistered && !n.isLeft {
		s.send(node, header{command: cmdHeartbeat, value: uint32(s.executing - len(n.tasks))}, now)
	}
}

func (s *workerSession) send(node int, h header, now time.Time) {
	h.epoch = s.obeyed
	s.sendAs(node, h, now)
}

func (s *workerSession) sendAs(node int, h header, now time.Time, body ...[]byte) {
	s.nodes[node].sentAt = now
	s.sends = append(s.sends, message{node, append([][]byte{h.encode()}, body...)})
}
