package bstar

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"
)

// lonely is a client of a node that nobody started.
func lonely(t *testing.T) *Client {
	client, err := New([]string{"tcp://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestAContextThatIsOverSendsNothing(t *testing.T) {
	client := lonely(t)
	late, end := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer end()
	left, leave := context.WithCancel(t.Context())
	leave()
	for kind, ctx := range map[error]context.Context{ErrTimeout: late, context.Canceled: left} {
		_, err := client.newCall(ctx, "echo", [][]byte{{1}}, callOptions{}, nil)
		if kind == context.Canceled && !errors.Is(err, kind) {
			t.Error("made a call that its caller has left", err)
		}
		if _, err := client.Request(ctx, "echo", nil); !errors.Is(err, kind) || MayHaveExecuted(err) {
			t.Error(err)
		}
		for _, service := range []string{"echo", ""} {
			var outcomes []Outcome
			for outcome := range client.Map(ctx, service, slices.Values([][]byte{{1}, {2}})) {
				outcomes = append(outcomes, outcome)
			}
			if len(outcomes) != 1 || outcomes[0].Err == nil || MayHaveExecuted(outcomes[0].Err) {
				t.Error(service, outcomes)
			}
			if service != "" && !errors.Is(outcomes[0].Err, kind) {
				t.Error(outcomes[0].Err)
			}
		}
	}
}

func TestAWindowIsNoLargerThanTheClientsBound(t *testing.T) {
	client := lonely(t)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	for outcome := range client.Map(ctx, "echo", slices.Values([][]byte{{1}}), Window(math.MaxInt)) {
		if !errors.Is(outcome.Err, context.Canceled) {
			t.Error(outcome.Err)
		}
	}
}
