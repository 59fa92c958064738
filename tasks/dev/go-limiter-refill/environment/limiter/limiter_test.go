package limiter_test

import (
	"testing"
	"time"

	"example.com/limits/clock"
	"example.com/limits/limiter"
)

func build(tokens int, per time.Duration, burst int) (*limiter.Limiter, *clock.Manual) {
	time := clock.NewManual()
	return limiter.New(limiter.Rate{Tokens: tokens, Per: per, Burst: burst}, time), time
}

func TestBurstThenRefusal(t *testing.T) {
	limits, _ := build(1, time.Second, 3)
	for i := 0; i < 3; i++ {
		if !limits.Allow("a") {
			t.Fatalf("call %d was refused", i+1)
		}
	}
	if limits.Allow("a") {
		t.Fatal("call 4 was allowed")
	}
	if !limits.Allow("b") {
		t.Fatal("another key was refused")
	}
}

func TestRefill(t *testing.T) {
	limits, now := build(2, time.Second, 1)
	limits.Allow("a")
	now.Advance(500 * time.Millisecond)
	if !limits.Allow("a") {
		t.Fatal("refused after half a second")
	}
}

func TestRetryAfterOfAFullBucket(t *testing.T) {
	limits, _ := build(1, time.Second, 1)
	if got := limits.RetryAfter("a"); got != 0 {
		t.Fatalf("expected 0, got %v", got)
	}
	limits.Allow("a")
	if got := limits.RetryAfter("a"); got != time.Second {
		t.Fatalf("expected 1s, got %v", got)
	}
}

func TestBadRatePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("a rate of 0 was accepted")
		}
	}()
	build(0, time.Second, 1)
}
