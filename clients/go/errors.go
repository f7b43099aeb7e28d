package bstar

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// The kinds of a CallError, for errors.Is. Catch by what you can do: ask again, give up, mend the request.
var (
	// ErrBusy: the broker, or this client, had no room until the deadline. It was not executed.
	ErrBusy = errors.New("busy")
	// ErrRejected: the request itself cannot be done. Mend it.
	ErrRejected = errors.New("rejected")
	// ErrTimeout: the deadline passed.
	ErrTimeout = errors.New("timed out")
	// ErrNoActiveNode is an ErrTimeout: no node served until the deadline. It was not executed.
	ErrNoActiveNode = fmt.Errorf("no node was active: %w", ErrTimeout)
	// ErrOutcomeUnknown: the attempt is lost, and the request may not, or need not, be sent again.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrHandler: the handler failed. The text says how.
	ErrHandler = errors.New("handler failed")
	// ErrDeclined is an ErrHandler: the handler declined the request; errors.As gives the *Declined.
	ErrDeclined = fmt.Errorf("declined: %w", ErrHandler)
	// ErrClosed: the client was closed before the request was sent.
	ErrClosed = errors.New("the client is closed")
)

// CallError is the outcome of a call without a reply.
type CallError struct {
	// Kind is one of the errors above, or context.Canceled.
	Kind error
	// MayHaveExecuted is false only if no worker can have begun the request (BSN-C-09).
	MayHaveExecuted bool
	// Code is that of the node's or worker's ERROR, 0 without one: section 3.6 of docs/protocol/native.md.
	Code uint32
	// RetryAfter is when a busy node asks for another attempt.
	RetryAfter time.Duration

	text  string
	cause error
}

func (e *CallError) Error() string { return e.text }

// Unwrap gives the kind and the cause: context.DeadlineExceeded, context.Canceled or a *Declined.
func (e *CallError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.cause}
}

// MayHaveExecuted is true unless the error says that no worker can have begun the request.
func MayHaveExecuted(err error) bool {
	var call *CallError
	return err != nil && (!errors.As(err, &call) || call.MayHaveExecuted)
}

// Declined is a worker's answer that it does not do this request. A handler returns it as its error.
type Declined struct {
	// Code is 1 to 64 letters, digits, '.', '_' and '-'.
	Code string
	Text string
	// Data is JSON of 65,536 bytes at most, or nil.
	Data []byte
}

func (d *Declined) Error() string {
	if d.Text == "" {
		return "Declined " + d.Code
	}
	return "Declined " + d.Code + ": " + d.Text
}

// Retry is a handler's wish for another attempt at a durable request. With After 0 the request's own backoff counts.
type Retry struct {
	After time.Duration
	Text  string
}

func (r *Retry) Error() string { return r.Text }

const declinedDataMax = 65_536

var declinedForm = regexp.MustCompile(`^(?s)Declined ([A-Za-z0-9._-]{1,64})(?:: (.*))?$`)

// declinedOf reads the text of BSN-W-20; nil if it has another form.
func declinedOf(text []byte, data [][]byte) *Declined {
	found := declinedForm.FindSubmatch(text)
	if found == nil {
		return nil
	}
	declined := &Declined{Code: string(found[1]), Text: string(found[2])}
	if len(data) > 0 && isJSON(data[0]) {
		declined.Data = data[0]
	}
	return declined
}

func timedOut(kind error, mayHaveExecuted bool, format string, arguments ...any) *CallError {
	return &CallError{
		Kind: kind, MayHaveExecuted: mayHaveExecuted, text: fmt.Sprintf(format, arguments...),
		cause: context.DeadlineExceeded,
	}
}

func failed(kind error, mayHaveExecuted bool, format string, arguments ...any) *CallError {
	return &CallError{Kind: kind, MayHaveExecuted: mayHaveExecuted, text: fmt.Sprintf(format, arguments...)}
}
