package bstar

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The client's machine: which node it follows, and the calls that have no reply (docs/protocol/native.md, section 5).
// It opens no socket and asks for no time. Its owner carries out sends and hangUps and reports ended calls.
//
// It follows the active node with the highest epoch. If there is none, the oldest request alone is a vote, at the
// first node that it could turn active; the others follow when that node serves.

// Used until a node sends the pair's timing.
const (
	pingDefault    = 250 * time.Millisecond
	silenceDefault = time.Second
	// Without a request, PING only to learn of a change before the next one.
	pingIdle = 5 * time.Second
	// While no node is followed, PINGs come soon and then ever later: the search adds at most half of its time.
	searchMin, searchMax = 5 * time.Millisecond, 100 * time.Millisecond
	// A node that says "now" and still refuses gets votes ever less often.
	refusalMin, refusalMax = 10 * time.Millisecond, 250 * time.Millisecond
	busyMin, busyMax       = 10 * time.Millisecond, 2 * time.Second
	partialsMax            = 10_000
)

type callState byte

const (
	callWaiting callState = iota
	callSent
	callPausing // a node was busy
	callEnded
)

// call is one request of a caller, from its beginning to its one end.
type call struct {
	service  string
	frames   [][]byte
	flags    byte // of URGENT, ONCE, WHOLE
	isKeyed  bool
	deadline time.Time // zero: none
	identity identity
	order    uint64
	began    time.Time

	isCounted   bool
	state       callState
	node        int  // that has it while sent
	isUncertain bool // an earlier attempt may have been executed
	wakeAt      time.Time
	busyCount   int
	busyHint    time.Duration
	busyText    string
	parts       [][][]byte
	leader      *call // whose request this call shares: the same key
	followers   []*call
	place       int // in the heap of timers; -1: not there

	index int // of Map
	reply [][]byte
	err   error
	ended chan<- []*call
}

// mayHaveExecuted is BSN-C-09, for a call that ends now without an answer.
func (c *call) mayHaveExecuted() bool {
	if c.leader != nil {
		return c.leader.mayHaveExecuted()
	}
	return c.isUncertain || c.state == callSent
}

type message struct {
	node   int
	frames [][]byte
}

type clientNode struct {
	endpoint    string
	isConnected bool
	trouble     string // why there is no connection; "" while the first attempt is under way
	status      *status
	isActive    bool
	epoch       uint64
	pingedAt    time.Time // the first unanswered PING
	outbox      []*call

	// When a request could turn it active, by its own word; after a refusal it gets none before restsUntil, and
	// while no node serves one is due by askBy, even if the node hears its peer (BSN-C-13).
	turnsAt, restsUntil, askBy time.Time
	refusals                   int
}

func (n *clientNode) can(what byte) bool { return n.status != nil && n.status.can&what != 0 }

type session struct {
	client     [16]byte
	nodes      []clientNode
	callsMax   int
	epoch      uint64 // the highest seen
	calls      map[identity]*call
	count      int // with those that share a request
	number     uint64
	waiting    []*call
	timers     timers
	followed   int // -1: none
	candidate  int // has a vote; -1: none
	vote       *call
	voteAt     time.Time
	createdAt  time.Time
	pingAt     time.Time
	search     time.Duration
	ping       time.Duration
	silence    time.Duration
	expectedAt time.Time // when the timer was to be handled

	sends   []message
	hangUps []int
	ended   []*call
}

func newSession(endpoints []string, client [16]byte, callsMax int, now time.Time) *session {
	s := &session{
		client: client, callsMax: callsMax, calls: map[identity]*call{}, followed: -1, candidate: -1, createdAt: now,
		pingAt: now.Add(pingIdle), search: searchMin, ping: pingDefault, silence: silenceDefault,
	}
	for _, endpoint := range endpoints {
		s.nodes = append(s.nodes, clientNode{endpoint: endpoint})
	}
	return s
}

// --- connections ---------------------------------------------------------------------------------------------------

func (s *session) connected(node int, now time.Time) {
	n := &s.nodes[node]
	*n = clientNode{endpoint: n.endpoint, isConnected: true, askBy: n.askBy}
	s.sendPing(node, now)
}

// disconnected: a connection broke, or an attempt to connect failed.
func (s *session) disconnected(node int, why string) {
	n := &s.nodes[node]
	wasConnected := n.isConnected
	*n = clientNode{endpoint: n.endpoint, trouble: why, askBy: n.askBy}
	if s.candidate == node {
		s.candidate, s.vote = -1, nil
	}
	if !wasConnected {
		return
	}
	var lost []*call
	for _, c := range s.calls {
		if c.state == callSent && c.node == node {
			lost = append(lost, c)
		}
	}
	slices.SortFunc(lost, func(a, b *call) int { return cmp.Compare(a.order, b.order) })
	for _, c := range lost {
		s.loseAttempt(c, fmt.Sprintf("the connection to %s broke", n.endpoint))
	}
}

// loseAttempt: nobody knows whether the attempt was executed.
func (s *session) loseAttempt(c *call, why string) {
	c.isUncertain, c.parts = true, nil
	if c.flags&flagOnce != 0 {
		s.end(c, failed(ErrOutcomeUnknown, true, "%s with the request to service %q, which may not be sent twice", why, c.service))
		return
	}
	s.wait(c)
}

func (s *session) wait(c *call) {
	c.state = callWaiting
	s.waiting = append(s.waiting, c)
}

// --- calls ---------------------------------------------------------------------------------------------------------

// begin takes a call. A keyed one has its identity; others get one.
func (s *session) begin(c *call, now time.Time) {
	s.number++
	c.order, c.began, c.place = s.number, now, -1
	if !c.isKeyed {
		c.identity = identityOf(s.client, s.number)
	}
	if !c.deadline.IsZero() && !c.deadline.After(now) {
		s.end(c, timedOut(ErrTimeout, false, "the deadline had passed: the request to service %q was not sent", c.service))
		return
	}
	if s.count >= s.callsMax {
		s.end(c, failed(ErrBusy, false, "%d requests are outstanding: wait for replies first", s.count))
		return
	}
	if len(s.calls) == 0 {
		// What the nodes said to a client without requests is old.
		s.pingAt = earlier(s.pingAt, now.Add(s.ping))
		if s.followed < 0 {
			s.startSearch(now)
		}
	}
	if leader := s.calls[c.identity]; leader != nil {
		if !slices.EqualFunc(leader.frames, c.frames, slices.Equal) || (leader.flags^c.flags)&flagOnce != 0 {
			s.end(c, failed(ErrRejected, false, "the key belongs to another request that is outstanding; it was not sent"))
			return
		}
		c.leader = leader
		leader.followers = append(leader.followers, c)
	} else {
		s.calls[c.identity] = c
		s.wait(c)
	}
	s.count++
	c.isCounted = true
	s.setTimer(c, c.deadline)
}

// abandon ends a call whose caller leaves, for cause.
func (s *session) abandon(c *call, cause error, now time.Time) {
	if c.state == callEnded {
		return
	}
	if cause == context.DeadlineExceeded {
		s.overdue(c, now)
		return
	}
	mayHave := c.mayHaveExecuted()
	err := failed(cause, mayHave, "the caller gave up the request to service %q%s", c.service, outcome(mayHave))
	s.cancel(c)
	s.end(c, err)
}

func (s *session) overdue(c *call, now time.Time) {
	mayHave := c.mayHaveExecuted()
	sent := c
	if c.leader != nil {
		sent = c.leader
	}
	about := fmt.Sprintf("after %.3g s: service %q", now.Sub(c.began).Seconds(), c.service)
	var err *CallError
	switch {
	case mayHave:
		err = timedOut(ErrTimeout, true, "timed out %s has not answered%s. Nodes: %s", about, outcome(true), s.describe())
	case sent.busyCount > 0:
		err = timedOut(ErrBusy, false, "the broker was busy until then, %s (%s). Nodes: %s", about, sent.busyText, s.describe())
		err.RetryAfter = sent.busyHint
	default:
		err = timedOut(ErrNoActiveNode, false, "no node was active, %s%s. Nodes: %s", about, outcome(false), s.describe())
	}
	s.cancel(c)
	s.end(c, err)
}

func outcome(mayHaveExecuted bool) string {
	if mayHaveExecuted {
		return "; it may have been executed"
	}
	return "; it was not executed"
}

// cancel tells the node that has the request (BSN-C-15).
func (s *session) cancel(c *call) {
	if c.state == callSent && !c.isKeyed && s.nodes[c.node].can(canCancels) {
		s.send(c.node, header{command: cmdCancel, identity: c.identity})
	}
}

// end is the one end of a call. Those that share its request end with it, unless its own time is over or its caller
// left: then the first of them takes the request over (BSN-C-10).
func (s *session) end(c *call, err *CallError) {
	isOwn := err != nil && (err.Kind == ErrTimeout || err.Kind == ErrNoActiveNode || err.Kind == ErrBusy || err.Kind == context.Canceled)
	heirs := c.followers
	c.followers = nil
	wasSent, wasPausing := c.state == callSent, c.state == callPausing
	s.forget(c, err)
	if len(heirs) == 0 {
		return
	}
	if !isOwn {
		for _, each := range heirs {
			each.leader, each.reply, each.parts = nil, c.reply, c.parts
			s.forget(each, err)
		}
		return
	}
	heir := heirs[0]
	heir.leader, heir.followers = nil, heirs[1:]
	heir.isUncertain = c.isUncertain || wasSent
	for _, each := range heir.followers {
		each.leader = heir
	}
	s.calls[heir.identity] = heir
	switch {
	case heir.isUncertain && heir.flags&flagOnce != 0:
		s.end(heir, failed(ErrOutcomeUnknown, true, "the attempt of the caller before was lost, and may not be repeated"))
	case wasPausing:
		heir.state, heir.wakeAt = callPausing, c.wakeAt
		s.setTimer(heir, earlier(heir.deadline, heir.wakeAt))
	default:
		s.wait(heir)
	}
}

func (s *session) forget(c *call, err *CallError) {
	if leader := c.leader; leader != nil {
		leader.followers = slices.DeleteFunc(leader.followers, func(each *call) bool { return each == c })
		c.leader = nil
	}
	if s.calls[c.identity] == c {
		delete(s.calls, c.identity)
	}
	if c.place >= 0 {
		heap.Remove(&s.timers, c.place)
	}
	if s.vote == c {
		s.vote, s.candidate = nil, -1
	}
	if c.isCounted {
		s.count--
	}
	c.state = callEnded
	if err != nil {
		c.err = err
	}
	s.ended = append(s.ended, c)
}

func (s *session) close() {
	for _, c := range s.calls {
		for _, each := range slices.Concat(c.followers, []*call{c}) {
			s.cancel(each)
			if mayHave := each.mayHaveExecuted(); mayHave {
				s.end(each, failed(ErrOutcomeUnknown, true, "the client was closed while the request was outstanding"))
			} else {
				s.end(each, failed(ErrClosed, false, "the client was closed; no node had accepted the request"))
			}
		}
	}
}

// --- what nodes send -----------------------------------------------------------------------------------------------

func (s *session) receive(node int, frames [][]byte, now time.Time) {
	h, ok := parseHeader(frames[0])
	n := &s.nodes[node]
	if !ok || !n.isConnected {
		return
	}
	n.pingedAt = time.Time{}
	if h.epoch <= epochMax {
		s.epoch = max(s.epoch, h.epoch)
	}
	body := frames[1:]
	switch h.command {
	case cmdPong:
		s.hear(node, &h, body, now)
	case cmdNotActive:
		s.hear(node, &h, body, now)
		s.refused(node, &h, now)
	case cmdFinals:
		rows, ok := parseBatch(body, false)
		if !ok {
			return
		}
		s.prove(node, &h)
		for _, each := range rows {
			if c := s.calls[identityOf(h.identity.client(), each.number)]; c != nil {
				s.finish(c, node, [][]byte{each.body}, 0)
			}
		}
	case cmdPartial, cmdFinal, cmdError, cmdBusy:
		s.prove(node, &h)
		if c := s.calls[h.identity]; c != nil {
			s.answer(c, node, &h, body, now)
		}
	}
}

// prove: a node that answers a vote serves.
func (s *session) prove(node int, h *header) {
	if s.candidate == node && !s.nodes[node].isActive {
		s.nodes[node].isActive, s.nodes[node].epoch = true, h.epoch
	}
}

func (s *session) hear(node int, h *header, body [][]byte, now time.Time) {
	if len(body) == 0 {
		return
	}
	told, ok := parseStatus(body[0])
	if !ok {
		return
	}
	n := &s.nodes[node]
	n.status, n.isActive, n.epoch = &told, told.state == stateActive, h.epoch
	if n.isActive {
		n.refusals, n.restsUntil = 0, time.Time{}
	}
	n.turnsAt = now.Add(told.retryAfter)
	s.silence = told.failoverWindow
	s.ping = min(told.heartbeat, told.failoverWindow/4)
}

// refused: the node is not active, and has not got the request.
func (s *session) refused(node int, h *header, now time.Time) {
	n := &s.nodes[node]
	n.isActive = false
	if s.candidate == node {
		s.candidate, s.vote = -1, nil
	}
	if !now.Before(n.restsUntil) {
		pause := min(refusalMin<<min(n.refusals, 8), refusalMax, s.silence)
		n.refusals++
		n.restsUntil = now.Add(pause)
	}
	n.askBy = now.Add(s.silence)
	c := s.calls[h.identity]
	if c == nil || c.state != callSent || c.node != node {
		return
	}
	if h.flags&flagDispatched != 0 {
		s.loseAttempt(c, n.endpoint+" stopped being active")
		return
	}
	c.parts = nil
	s.wait(c)
}

// answer takes PARTIAL, FINAL, ERROR and BUSY.
func (s *session) answer(c *call, node int, h *header, body [][]byte, now time.Time) {
	isCurrent := c.state == callSent && c.node == node
	switch h.command {
	case cmdFinal:
		s.finish(c, node, body, h.value)
	case cmdPartial:
		switch {
		case !isCurrent || len(body) == 0:
		case h.value == 0:
			c.parts = [][][]byte{body}
		case int(h.value) == len(c.parts) && len(c.parts) < partialsMax:
			c.parts = append(c.parts, body)
		default:
			s.end(c, failed(ErrOutcomeUnknown, true, "PARTIALs of service %q were lost, or are more than %d", c.service, partialsMax))
		}
	case cmdBusy:
		if isCurrent {
			s.pause(c, fromMs(h.value), body, now)
		}
	case cmdError:
		if isCurrent && c.isKeyed && h.value == codeExpired && c.isEarly(now) {
			s.retry(c, busyMin, now) // the time of another caller with this key is over
			return
		}
		isHandlers := h.value == codeHandlerFailed || h.value == codeHandlerTimeout || h.value == codeRetry
		if isCurrent || isHandlers {
			err := s.errorOf(c, node, h.value, body)
			if !err.MayHaveExecuted {
				c.state = callWaiting // no worker has it
			}
			s.end(c, err)
		}
	}
}

func (s *session) finish(c *call, node int, body [][]byte, partials uint32) {
	isCurrent := c.state == callSent && c.node == node
	switch {
	case len(body) == 0 || (partials > 0 && !isCurrent):
	case partials > 0 && int(partials) != len(c.parts):
		s.end(c, failed(ErrOutcomeUnknown, true, "PARTIALs of the reply of service %q were lost", c.service))
	default:
		if partials == 0 {
			c.parts = nil // of an execution that was lost
		}
		c.reply = body
		s.end(c, nil)
	}
}

func (s *session) pause(c *call, hint time.Duration, body [][]byte, now time.Time) {
	c.busyText = textOf(body)
	c.busyHint = hint
	pause := max(hint, min(busyMin<<min(c.busyCount, 10), busyMax))
	c.busyCount++
	s.retry(c, pause, now)
}

func (s *session) retry(c *call, pause time.Duration, now time.Time) {
	c.state, c.wakeAt = callPausing, now.Add(pause)
	s.setTimer(c, earlier(c.deadline, c.wakeAt))
}

func (s *session) errorOf(c *call, node int, code uint32, body [][]byte) *CallError {
	text := textOf(body)
	from := fmt.Sprintf("service %q at %s: %s", c.service, s.nodes[node].endpoint, text)
	var err *CallError
	switch code {
	case codeHandlerFailed:
		if declined := declinedOf([]byte(text), body[min(1, len(body)):]); declined != nil {
			err = &CallError{Kind: ErrDeclined, MayHaveExecuted: true, text: declined.Error(), cause: declined}
		} else {
			err = failed(ErrHandler, true, "the handler failed: %s", from)
		}
	case codeHandlerTimeout, codeRetry:
		err = failed(ErrHandler, true, "the handler did not end with a reply: %s", from)
	case codeExpired:
		err = timedOut(ErrTimeout, c.isUncertain, "timed out in the queue, %s%s", from, outcome(c.isUncertain))
	case codeInvalid, codeNotAllowed, codeWorkerGone:
		err = failed(ErrRejected, c.isUncertain, "rejected, %s", from)
	default:
		err = failed(ErrOutcomeUnknown, true, "it may have been executed, %s (code %d)", from, code)
	}
	err.Code = code
	return err
}

func textOf(body [][]byte) string {
	if len(body) == 0 {
		return ""
	}
	return strings.ToValidUTF8(string(cut(string(body[0]))), "\uFFFD")
}

func isJSON(data []byte) bool { return len(data) <= declinedDataMax && json.Valid(data) }

// --- which node ----------------------------------------------------------------------------------------------------

// step decides, after all that is known now has been handled, and makes messages of what is to be sent.
func (s *session) step(now time.Time) {
	best := -1
	for node := range s.nodes {
		if n := &s.nodes[node]; n.isConnected && n.isActive && (best < 0 || n.epoch > s.nodes[best].epoch) {
			best = node
		}
	}
	if best < 0 && (s.followed >= 0 || s.nodes[0].askBy.IsZero()) {
		s.startSearch(now)
	}
	s.followed, s.voteAt = best, time.Time{}
	if best >= 0 {
		s.candidate, s.vote = -1, nil
		for _, c := range s.takeWaiting() {
			s.dispatch(c, best)
		}
	} else if s.candidate < 0 {
		s.sendVote(now)
	}
	for node := range s.nodes {
		s.encode(node, now)
	}
}

func (s *session) startSearch(now time.Time) {
	s.pingAt, s.search = now, searchMin
	for node := range s.nodes {
		s.nodes[node].askBy = now.Add(s.silence)
	}
}

// takeWaiting empties the list of those that wait, in the order in which they began.
func (s *session) takeWaiting() []*call {
	waiting := slices.DeleteFunc(s.waiting, func(c *call) bool { return c.state != callWaiting })
	byOrder := func(a, b *call) int { return cmp.Compare(a.order, b.order) }
	if !slices.IsSortedFunc(waiting, byOrder) {
		slices.SortFunc(waiting, byOrder)
	}
	s.waiting = nil
	return waiting
}

// dispatch gives the call to a node; false if the node may not have it (BSN-C-11).
func (s *session) dispatch(c *call, node int) bool {
	n := &s.nodes[node]
	if c.flags&flagOnce != 0 && !n.can(canOnce) {
		s.end(c, failed(ErrRejected, false, "%s is of a release that does not know Once: the request was not sent", n.endpoint))
		return false
	}
	c.state, c.node = callSent, node
	n.outbox = append(n.outbox, c)
	return true
}

// sendVote sends the oldest request to the first node that it could turn active (BSN-C-06, BSN-C-13), and a PING,
// whose PONG tells at once whether it has.
func (s *session) sendVote(now time.Time) {
	waiting := s.takeWaiting()
	s.waiting = waiting
	if len(waiting) == 0 {
		return
	}
	node, at := s.findCandidate(now)
	if node < 0 {
		s.voteAt = at
		return
	}
	// Requests of the broker's own services are no votes.
	place := max(0, slices.IndexFunc(waiting, func(c *call) bool { return !strings.HasPrefix(c.service, "mmi.") }))
	c := waiting[place]
	s.waiting = slices.Delete(waiting, place, place+1)
	if s.dispatch(c, node) {
		s.candidate, s.vote = node, c
	} else {
		s.sendVote(now)
	}
}

// findCandidate returns a node, or -1 and when to look again. It first waits for the word of each node that may still
// come: a node that does not hear its peer would take the role from it.
func (s *session) findCandidate(now time.Time) (node int, at time.Time) {
	node = -1
	for i := range s.nodes {
		n := &s.nodes[i]
		switch {
		case !n.isConnected:
			if settled := s.createdAt.Add(s.silence); n.trouble == "" && now.Before(settled) {
				return -1, settled
			}
		case n.status == nil:
			return -1, time.Time{} // its PONG is on the way, or its silence will be noticed
		case n.status.isNever:
		default:
			due := n.turnsAt
			if n.askBy.Before(due) {
				due = n.askBy
			}
			if due.Before(n.restsUntil) {
				due = n.restsUntil
			}
			if now.Before(due) {
				at = earlier(at, due)
			} else if node < 0 {
				node = i
			}
		}
	}
	return node, at
}

func (s *session) describe() string {
	var all []string
	for node := range s.nodes {
		n := &s.nodes[node]
		switch {
		case !n.isConnected:
			all = append(all, n.endpoint+": "+cmp.Or(n.trouble, "not connected yet"))
		case n.status == nil:
			all = append(all, n.endpoint+": has not answered")
		case n.isActive:
			all = append(all, n.endpoint+": active")
		default:
			all = append(all, fmt.Sprintf("%s: not active (state %d, its peer %d)", n.endpoint, n.status.state, n.status.peer))
		}
	}
	return strings.Join(all, "; ")
}

// --- messages ------------------------------------------------------------------------------------------------------

func (s *session) send(node int, h header, body ...[]byte) {
	h.epoch = s.epoch
	s.sends = append(s.sends, message{node, append([][]byte{h.encode()}, body...)})
}

type batchKind struct {
	service string
	flags   byte
}

// encode makes messages of a node's outbox: what is ready together for one service travels together (BSN-G-18).
func (s *session) encode(node int, now time.Time) {
	n := &s.nodes[node]
	if len(n.outbox) == 0 {
		return
	}
	var open map[batchKind]*batch
	for _, c := range n.outbox {
		flags := c.flags
		if c.isUncertain {
			flags |= flagRedelivered
		}
		isAlone := c.isKeyed || flags&flagUrgent != 0 || len(c.frames) > 1 || len(c.frames[0]) > batchBytesMax
		if isAlone || !n.can(canBatches) {
			h := header{command: cmdRequest, flags: flags, identity: c.identity, value: c.ttlMs(now), service: c.service}
			s.send(node, h, c.frames...)
			continue
		}
		if open == nil {
			open = map[batchKind]*batch{}
		}
		kind := batchKind{c.service, flags}
		b := open[kind]
		if b == nil {
			b = &batch{}
			open[kind] = b
		}
		if len(b.rows) == batchRowsMax || b.size+len(c.frames[0]) > batchBytesMax {
			s.sendBatch(node, kind, b)
		}
		b.size += len(c.frames[0])
		b.rows = append(b.rows, row{number: c.identity.number(), ttlMs: c.ttlMs(now), body: c.frames[0]})
	}
	for kind, b := range open {
		s.sendBatch(node, kind, b)
	}
	clear(n.outbox)
	n.outbox = n.outbox[:0]
	if s.candidate == node {
		s.sendPing(node, now)
	}
}

type batch struct {
	rows []row
	size int
}

func (s *session) sendBatch(node int, kind batchKind, b *batch) {
	h := header{command: cmdRequests, flags: kind.flags, service: kind.service}
	if len(b.rows) == 1 {
		h.command, h.value = cmdRequest, b.rows[0].ttlMs
		h.identity = identityOf(s.client, b.rows[0].number)
		s.send(node, h, b.rows[0].body)
	} else {
		h.identity = identityOf(s.client, 0)
		table, blob := encodeBatch(b.rows, true)
		s.send(node, h, table, blob)
	}
	b.rows, b.size = b.rows[:0], 0
}

// ttlMs is what is left of the call's time, 0: no limit. A margin lets EXPIRED arrive before the deadline, so that the
// caller learns that it was not executed.
func (c *call) ttlMs(now time.Time) uint32 {
	if c.deadline.IsZero() {
		return 0
	}
	left := c.deadline.Sub(now)
	return max(1, toMs(left-ttlMargin(left)))
}

func ttlMargin(left time.Duration) time.Duration { return min(left/20, 250*time.Millisecond) }

// isEarly: the call's own time cannot have ended at a node yet.
func (c *call) isEarly(now time.Time) bool {
	return c.deadline.IsZero() || c.deadline.Sub(now) > 2*ttlMargin(c.deadline.Sub(c.began))
}

// --- time ----------------------------------------------------------------------------------------------------------

func (s *session) handleTimer(now time.Time) {
	if !s.expectedAt.IsZero() && now.Sub(s.expectedAt) > s.silence/2 {
		// This process was away: what the nodes sent meanwhile waits to be read.
		for node := range s.nodes {
			if n := &s.nodes[node]; !n.pingedAt.IsZero() {
				n.pingedAt = now
			}
		}
	}
	for node := range s.nodes {
		if n := &s.nodes[node]; !n.pingedAt.IsZero() && !now.Before(n.pingedAt.Add(s.silence)) {
			s.hangUps = append(s.hangUps, node)
			s.disconnected(node, "silent")
		}
	}
	for len(s.timers) > 0 && !now.Before(s.timers[0].timerAt()) {
		c := s.timers[0]
		if !c.deadline.IsZero() && !now.Before(c.deadline) {
			s.overdue(c, now)
			continue
		}
		s.wait(c)
		s.setTimer(c, c.deadline)
	}
	if !now.Before(s.pingAt) {
		interval := s.ping
		switch {
		case len(s.calls) == 0:
			interval = pingIdle
		case s.followed < 0:
			interval = min(s.search, s.ping)
			s.search = min(s.search*3/2, searchMax)
		}
		s.pingAt = now.Add(interval)
		for node := range s.nodes {
			s.sendPing(node, now)
		}
	}
}

func (s *session) nextDeadline() time.Time {
	at := s.pingAt
	for node := range s.nodes {
		if n := &s.nodes[node]; !n.pingedAt.IsZero() {
			at = earlier(at, n.pingedAt.Add(s.silence))
		}
	}
	if len(s.timers) > 0 {
		at = earlier(at, s.timers[0].timerAt())
	}
	at = earlier(at, s.voteAt)
	s.expectedAt = at
	return at
}

func (s *session) sendPing(node int, now time.Time) {
	n := &s.nodes[node]
	if !n.isConnected {
		return
	}
	if n.pingedAt.IsZero() {
		n.pingedAt = now
	}
	s.send(node, header{command: cmdPing})
}

// earlier is the earlier of two times; a zero time never comes.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// timers is a heap of the calls that have a deadline or wait for a busy node.
type timers []*call

func (c *call) timerAt() time.Time {
	if c.state == callPausing {
		return earlier(c.deadline, c.wakeAt)
	}
	return c.deadline
}

func (t timers) Len() int           { return len(t) }
func (t timers) Less(a, b int) bool { return t[a].timerAt().Before(t[b].timerAt()) }
func (t timers) Swap(a, b int) {
	t[a], t[b] = t[b], t[a]
	t[a].place, t[b].place = a, b
}

func (t *timers) Push(each any) {
	c := each.(*call)
	c.place = len(*t)
	*t = append(*t, c)
}

func (t *timers) Pop() any {
	last := len(*t) - 1
	c := (*t)[last]
	(*t)[last], *t, c.place = nil, (*t)[:last], -1
	return c
}

// setTimer puts the call where its time belongs.
func (s *session) setTimer(c *call, at time.Time) {
	switch {
	case at.IsZero() && c.place >= 0:
		heap.Remove(&s.timers, c.place)
	case at.IsZero():
	case c.place < 0:
		heap.Push(&s.timers, c)
	default:
		heap.Fix(&s.timers, c.place)
	}
}
