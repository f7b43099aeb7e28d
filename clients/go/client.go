// Package bstar is a client and a worker for a bstar pair: two brokers that stand in for each other.
//
// It speaks the native dialect (docs/protocol/native.md) over ZMTP of its own. A Client follows the active node and
// sends a request again, with the same identity, until its deadline. A Worker registers with both nodes and obeys the
// one with the highest epoch.
package bstar

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/crypto/blake2b"
)

// Option changes a Client or a Worker.
type Option func(*options)

type options struct {
	security     *Security
	timeout      time.Duration
	callsMax     int
	credit       int
	drainTimeout time.Duration
	log          *slog.Logger
}

// WithSecurity uses CURVE, with this program's key and those of the nodes.
func WithSecurity(security *Security) Option { return func(o *options) { o.security = security } }

// WithTimeout is the deadline of a call whose context has none. The default is 30 s, 0 is none.
func WithTimeout(timeout time.Duration) Option { return func(o *options) { o.timeout = timeout } }

// WithOutstandingMax bounds a client's requests without a reply; beyond it a call is ErrBusy. The default is 100,000.
func WithOutstandingMax(count int) Option { return func(o *options) { o.callsMax = count } }

// WithCredit is how many requests a worker executes at once, each in a goroutine: 1 to 65,535. The default is 1.
func WithCredit(credit int) Option { return func(o *options) { o.credit = credit } }

// WithDrainTimeout is how long a worker that stops waits for what it has begun. The default is 10 s.
func WithDrainTimeout(timeout time.Duration) Option {
	return func(o *options) { o.drainTimeout = timeout }
}

// WithLogger takes the place of slog.Default(). One event is one change of a connection or registration.
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.log = logger } }

func settings(endpoints []string, given []Option) (*options, error) {
	o := &options{
		timeout: 30 * time.Second, callsMax: 100_000, credit: 1, drainTimeout: 10 * time.Second, log: slog.Default(),
	}
	for _, option := range given {
		option(o)
	}
	if len(endpoints) == 0 {
		return nil, errors.New("name the endpoints of the pair, the primary first")
	}
	for _, endpoint := range endpoints {
		if _, _, err := splitEndpoint(endpoint); err != nil {
			return nil, err
		}
	}
	if o.security != nil && len(o.security.nodes) != len(endpoints) {
		return nil, fmt.Errorf("%d endpoints need as many keys of nodes, not %d", len(endpoints), len(o.security.nodes))
	}
	if o.timeout < 0 || o.callsMax < 1 || o.credit < 1 || o.credit > 65_535 || o.drainTimeout < 0 {
		return nil, errors.New("an option is out of range: see its comment")
	}
	return o, nil
}

// CallOption changes one call, or all calls of a Map.
type CallOption func(*callOptions)

type callOptions struct {
	flags       byte
	key         []byte
	window      int
	isUnordered bool
}

// Once: the request must not be executed twice. A lost attempt is ErrOutcomeUnknown at once.
func Once() CallOption { return func(o *callOptions) { o.flags |= flagOnce } }

// Urgent: before the service's requests that are not.
func Urgent() CallOption { return func(o *callOptions) { o.flags |= flagUrgent } }

// Key makes all requests with this service and key one request, whoever sends them. It is for Request and Call.
func Key(key string) CallOption { return func(o *callOptions) { o.key = []byte(key) } }

// Window is how many requests of a Map are under way at once: 512 without it, WithOutstandingMax at the most.
func Window(count int) CallOption { return func(o *callOptions) { o.window = count } }

// Unordered: a Map yields replies as they come.
func Unordered() CallOption { return func(o *callOptions) { o.isUnordered = true } }

// Reply is all that a service answered.
type Reply struct {
	// Frames is the final body, mostly of one frame.
	Frames [][]byte
	// Parts are the bodies that a handler sent before it.
	Parts [][][]byte
}

// Outcome is one of a Map: a reply's one frame, or an error.
type Outcome struct {
	Index int
	Body  []byte
	Err   error
}

// Client asks services of one pair. It serves any number of goroutines; make one and keep it.
type Client struct {
	options *options
	session *session
	links   links
	closing chan struct{}
	closed  chan struct{}
	once    sync.Once
}

// New connects to the nodes of a pair, the primary first. It returns before it is connected.
func New(endpoints []string, given ...Option) (*Client, error) {
	o, err := settings(endpoints, given)
	if err != nil {
		return nil, err
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	c := &Client{
		options: o, session: newSession(endpoints, id, o.callsMax, time.Now()),
		links: links{
			endpoints: endpoints, keys: o.security, pauseMin: 20 * time.Millisecond, pauseMax: 250 * time.Millisecond,
		},
		closing: make(chan struct{}), closed: make(chan struct{}),
	}
	c.links.start()
	go c.run()
	return c, nil
}

// Close ends all calls and connections. Twice is fine.
func (c *Client) Close() error {
	c.once.Do(func() { close(c.closing) })
	<-c.closed
	return nil
}

// Request asks a service and returns its reply, which must have one frame; Call is for others. The context ends it:
// its deadline is the call's, and cancelling it gives the request up. An error is a *CallError, unless the reply has
// several frames.
func (c *Client) Request(ctx context.Context, service string, body []byte, given ...CallOption) ([]byte, error) {
	reply, err := c.Call(ctx, service, [][]byte{body}, given...)
	if err != nil {
		return nil, err
	}
	return single(reply.Frames)
}

func single(frames [][]byte) ([]byte, error) {
	if len(frames) != 1 {
		return nil, fmt.Errorf("the request was executed, its reply has %d frames: use Call", len(frames))
	}
	return frames[0], nil
}

// Call is Request with any number of frames.
func (c *Client) Call(ctx context.Context, service string, frames [][]byte, given ...CallOption) (*Reply, error) {
	o, err := callOptionsOf(given)
	if err != nil {
		return nil, err
	}
	if o.window != 0 || o.isUnordered {
		return nil, failed(ErrRejected, false, "Window and Unordered are for Map: the request was not sent")
	}
	ended := make(chan []*call, 1)
	made, err := c.newCall(ctx, service, frames, o, ended)
	if err != nil {
		return nil, err
	}
	if err := c.begin([]*call{made}); err != nil {
		return nil, err
	}
	select {
	case <-ended:
	case <-ctx.Done():
		c.abandon(ctx, made)
		if !c.await(ended) {
			return nil, errClosed()
		}
	case <-c.closed:
		if !c.await(ended) {
			return nil, errClosed()
		}
	}
	if made.err != nil {
		return nil, made.err
	}
	return &Reply{made.reply, made.parts}, nil
}

func errClosed() error {
	return failed(ErrClosed, false, "the client is closed; the request was not sent")
}

// await waits for the end of a call; false if the client was closed before it had the call.
func (c *Client) await(ended <-chan []*call) bool {
	select {
	case <-ended:
		return true
	case <-c.closed:
	}
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

func callOptionsOf(given []CallOption) (callOptions, error) {
	var o callOptions
	for _, option := range given {
		option(&o)
	}
	if o.window < 0 {
		return o, failed(ErrRejected, false, "a Window is 1 or more: nothing was sent")
	}
	return o, nil
}

func (c *Client) newCall(
	ctx context.Context, service string, frames [][]byte, o callOptions, ended chan<- []*call,
) (*call, error) {
	// A deadline that has passed is the session's to tell.
	if cause := ctx.Err(); cause != nil && cause != context.DeadlineExceeded {
		return nil, failed(cause, false, "the request to service %q was not sent: %s", service, cause)
	}
	if len(service) < 1 || len(service) > serviceBytesMax {
		return nil, failed(ErrRejected, false, "the name of a service has 1 to %d bytes: nothing was sent", serviceBytesMax)
	}
	size := 0
	for _, frame := range frames {
		size += len(frame)
	}
	if len(frames) == 0 || len(frames) > framesMax-2 || size > messageBytesMax-headerBytesMin-serviceBytesMax {
		return nil, failed(ErrRejected, false, "a body of %d frames, %d bytes is out of bounds: it was not sent", len(frames), size)
	}
	// Parts are handed out with the final reply only, so a redelivery may begin them anew.
	made := &call{service: service, frames: frames, flags: o.flags | flagWhole, ended: ended}
	if o.key != nil {
		made.isKeyed, made.identity = true, keyedIdentity(service, o.key)
	}
	made.deadline, _ = ctx.Deadline()
	if made.deadline.IsZero() && c.options.timeout > 0 {
		made.deadline = time.Now().Add(c.options.timeout)
	}
	return made, nil
}

// keyedIdentity is BSN-G-14.
func keyedIdentity(service string, key []byte) identity {
	hash, _ := blake2b.New(len(identity{}), nil) // no error: the size is allowed, and there is no key
	hash.Write([]byte{byte(len(service))})
	hash.Write([]byte(service))
	hash.Write(key)
	id := identity(hash.Sum(nil))
	id[16] = id[16]&0x3F | 0x40
	return id
}

// --- the loop ------------------------------------------------------------------------------------------------------

// begin hands calls to the loop. The error says that the client is closed.
func (c *Client) begin(calls []*call) error {
	return c.put(func(now time.Time) {
		for _, each := range calls {
			c.session.begin(each, now)
		}
	})
}

func (c *Client) abandon(ctx context.Context, calls ...*call) {
	// After the end there is nothing left to abandon.
	_ = c.put(func(now time.Time) {
		for _, each := range calls {
			c.session.abandon(each, ctx.Err(), now)
		}
	})
}

func (c *Client) put(do func(now time.Time)) error {
	select {
	case <-c.closed:
		return errClosed()
	default:
	}
	select {
	case c.links.events <- event{node: -1, do: do}:
		return nil
	case <-c.closed:
		return errClosed()
	}
}

func (c *Client) run() {
	defer close(c.closed)
	s := c.session
	var events []event
	for {
		events = c.links.take(s.nextDeadline(), c.closing, events)
		now := time.Now()
		for _, e := range events {
			c.handle(e, now)
		}
		isClosing := c.isClosing()
		if isClosing {
			s.close()
		} else {
			s.handleTimer(now)
			followed := s.followed
			s.step(now)
			if s.followed != followed {
				c.options.log.Info("bstar client: the node that it follows has changed", "nodes", s.describe())
			}
		}
		for _, node := range s.hangUps {
			c.links.hangUp(node)
		}
		for _, each := range s.sends {
			c.links.send(each.node, each.frames)
		}
		deliver(s.ended)
		clear(s.sends)
		s.hangUps, s.sends, s.ended = s.hangUps[:0], s.sends[:0], nil
		if isClosing {
			c.links.stop()
			return
		}
	}
}

// deliver tells callers of ended calls. What ended together for one Map is told together, so that it begins as many
// others together.
func deliver(ended []*call) {
	for len(ended) > 0 {
		count := 1
		for count < len(ended) && ended[count].ended == ended[0].ended {
			count++
		}
		ended[0].ended <- ended[:count]
		ended = ended[count:]
	}
}

func (c *Client) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

func (c *Client) handle(e event, now time.Time) {
	s := c.session
	switch {
	case e.do != nil:
		e.do(now)
	case c.links.isStale(e):
	case e.connection == nil:
		s.disconnected(e.node, e.err.Error())
	case e.err != nil:
		s.disconnected(e.node, "the connection broke: "+e.err.Error())
	case e.message == nil:
		s.connected(e.node, now)
	default:
		e.connection.isProven.Store(true)
		s.receive(e.node, e.message, now)
	}
}

// --- many requests -------------------------------------------------------------------------------------------------

// Map asks a service for each body, with a window of requests under way, and yields an Outcome for each: in the order
// of the bodies, or as they come. Breaking out of the loop, or the end of the context, gives up what is under way; after
// the context's end one body is taken at most, and the last outcome has the error of that one.
func (c *Client) Map(
	ctx context.Context, service string, bodies iter.Seq[[]byte], given ...CallOption,
) iter.Seq[Outcome] {
	return func(yield func(Outcome) bool) {
		o, err := callOptionsOf(given)
		if err == nil && o.key != nil {
			err = failed(ErrRejected, false, "a Key is for Request and Call: one key belongs to one body")
		}
		if err != nil {
			yield(Outcome{Err: err})
			return
		}
		if o.window == 0 {
			o.window = 512
		}
		o.window = min(o.window, c.options.callsMax)
		next, stop := iter.Pull(bodies)
		defer stop()
		m := &mapping{
			client: c, ctx: ctx, service: service, options: o, next: next,
			ended: make(chan []*call, o.window), underWay: map[int]*call{}, done: map[int]Outcome{},
		}
		defer m.giveUp()
		for m.fill() {
			if !m.yieldDone(yield) {
				return
			}
			m.wait()
		}
		m.yieldDone(yield)
	}
}

type mapping struct {
	client   *Client
	ctx      context.Context
	service  string
	options  callOptions
	next     func() ([]byte, bool)
	ended    chan []*call
	underWay map[int]*call
	done     map[int]Outcome // not yet yielded
	taken    int
	yielded  int
	isOver   bool // no further bodies

	hasGivenUp bool
}

// fill begins as many requests as the window has room for; false if nothing is under way after that.
func (m *mapping) fill() bool {
	var begun []*call
	for !m.isOver && len(m.underWay)+len(m.done) < m.options.window {
		body, ok := m.next()
		if !ok {
			m.isOver = true
			break
		}
		made, err := m.client.newCall(m.ctx, m.service, [][]byte{body}, m.options, m.ended)
		m.isOver = m.ctx.Err() != nil
		if err != nil {
			m.done[m.taken] = Outcome{Index: m.taken, Err: err}
		} else {
			made.index = m.taken
			m.underWay[m.taken] = made
			begun = append(begun, made)
		}
		m.taken++
	}
	if len(begun) > 0 {
		if err := m.client.begin(begun); err != nil {
			m.fail(err)
		}
	}
	return len(m.underWay) > 0 || !m.isOver
}

func (m *mapping) fail(err error) {
	m.isOver = true
	for index := range m.underWay {
		m.done[index] = Outcome{Index: index, Err: err}
	}
	clear(m.underWay)
}

// wait takes at least one end of a request, and those that are there.
func (m *mapping) wait() {
	if len(m.underWay) == 0 {
		return
	}
	over := m.ctx.Done()
	if m.hasGivenUp {
		over = nil
	}
	select {
	case ended := <-m.ended:
		m.take(ended)
	case <-over:
		m.giveUp()
	case <-m.client.closed:
		m.takeAll()
		m.fail(errClosed())
	}
	m.takeAll()
}

func (m *mapping) takeAll() {
	for {
		select {
		case ended := <-m.ended:
			m.take(ended)
		default:
			return
		}
	}
}

func (m *mapping) take(ended []*call) {
	for _, made := range ended {
		outcome := Outcome{Index: made.index, Err: made.err}
		if outcome.Err == nil {
			outcome.Body, outcome.Err = single(made.reply)
		}
		m.done[made.index] = outcome
		delete(m.underWay, made.index)
	}
}

func (m *mapping) giveUp() {
	m.hasGivenUp = true
	if len(m.underWay) == 0 {
		return
	}
	calls := make([]*call, 0, len(m.underWay))
	for _, made := range m.underWay {
		calls = append(calls, made)
	}
	cause := m.ctx
	if cause.Err() == nil {
		ended, end := context.WithCancel(context.Background())
		end()
		cause = ended
	}
	m.client.abandon(cause, calls...)
}

// yieldDone yields what may be yielded; false if the loop was left.
func (m *mapping) yieldDone(yield func(Outcome) bool) bool {
	for len(m.done) > 0 {
		outcome, ok := m.done[m.yielded]
		if m.options.isUnordered {
			for _, outcome = range m.done {
				break
			}
		} else if !ok {
			return true
		}
		delete(m.done, outcome.Index)
		m.yielded++
		if !yield(outcome) {
			return false
		}
	}
	return true
}
