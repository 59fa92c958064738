package limiter_test

import (
	"fmt"
	"testing"
	"time"
)

func drain(t *testing.T, limits interface{ Allow(string) bool }, count int) {
	t.Helper()
	for i := 0; i < count; i++ {
		if !limits.Allow("a") {
			t.Fatalf("call %d of the burst was refused", i+1)
		}
	}
	if limits.Allow("a") {
		t.Fatal("a call beyond the burst was allowed")
	}
}

func TestAskingOftenDoesNotStarve(t *testing.T) {
	limits, now := build(10, time.Minute, 5)
	drain(t, limits, 5)
	for second := 1; second <= 60; second++ {
		now.Advance(time.Second)
		limits.RetryAfter("a")
		if got, want := limits.Allow("a"), second%6 == 0; got != want {
			t.Fatalf("second %d: expected %v, got %v", second, want, got)
		}
	}
}

func TestNothingIsLostInRounding(t *testing.T) {
	for _, tokens := range []int{3, 7, 11} {
		t.Run(fmt.Sprint(tokens), func(t *testing.T) {
			limits, now := build(tokens, time.Second, 2)
			drain(t, limits, 2)
			allowed := 0
			for i := 0; i < 3000; i++ {
				now.Advance(time.Millisecond)
				if limits.Allow("a") {
					allowed++
				}
			}
			if allowed != 3*tokens {
				t.Fatalf("expected %d, got %d", 3*tokens, allowed)
			}
		})
	}
}

func TestRetryAfterIsExact(t *testing.T) {
	limits, now := build(10, time.Minute, 5)
	drain(t, limits, 5)
	now.Advance(5 * time.Second)
	if got := limits.RetryAfter("a"); got != time.Second {
		t.Fatalf("expected 1s, got %v", got)
	}
	limits, now = build(3, time.Second, 1)
	drain(t, limits, 1)
	wait := limits.RetryAfter("a")
	if want := time.Duration(333333334); wait != want {
		t.Fatalf("expected %v, got %v", want, wait)
	}
	now.Advance(wait - 1)
	if limits.Allow("a") {
		t.Fatal("allowed a nanosecond too early")
	}
	now.Advance(1)
	if !limits.Allow("a") {
		t.Fatal("refused after the wait")
	}
}

func TestAFullBucketDoesNotSaveUp(t *testing.T) {
	limits, now := build(1, time.Second, 2)
	now.Advance(1900 * time.Millisecond)
	drain(t, limits, 2)
	now.Advance(999 * time.Millisecond)
	if limits.Allow("a") {
		t.Fatal("time while the bucket was full counted")
	}
	now.Advance(time.Millisecond)
	if !limits.Allow("a") {
		t.Fatal("refused after a full second")
	}
	limits, now = build(1, time.Second, 2)
	limits.Allow("a")
	now.Advance(1700 * time.Millisecond)
	drain(t, limits, 2)
	if got := limits.RetryAfter("a"); got != time.Second {
		t.Fatalf("expected 1s, got %v", got)
	}
}

func TestAClockSetBackChangesNothing(t *testing.T) {
	limits, now := build(1, time.Second, 3)
	limits.Allow("a")
	now.Advance(-time.Hour)
	drain(t, limits, 2)
	now.Advance(time.Hour)
	if limits.Allow("a") {
		t.Fatal("gained tokens while the clock caught up")
	}
	now.Advance(time.Second)
	if !limits.Allow("a") {
		t.Fatal("refused after the clock had caught up")
	}
}

func TestYearsOfRestFillABucket(t *testing.T) {
	limits, now := build(1000000, time.Second, 2)
	drain(t, limits, 2)
	for i := 0; i < 3; i++ {
		now.Advance(100 * 365 * 24 * time.Hour)
	}
	drain(t, limits, 2)
}

func TestPruneGoesByTheTokensOfNow(t *testing.T) {
	limits, now := build(1, time.Second, 2)
	limits.Allow("a")
	limits.Allow("b")
	limits.Allow("b")
	now.Advance(time.Second)
	limits.Prune()
	if got := limits.Len(); got != 1 {
		t.Fatalf("expected 1, got %d", got)
	}
	now.Advance(999 * time.Millisecond)
	limits.Prune()
	if got := limits.Len(); got != 1 {
		t.Fatalf("expected 1, got %d", got)
	}
	now.Advance(time.Millisecond)
	limits.Prune()
	if got := limits.Len(); got != 0 {
		t.Fatalf("expected 0, got %d", got)
	}
}
