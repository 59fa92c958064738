// Package limiter limits how often something may happen, by key.
package limiter

import (
	"sync"
	"time"

	"example.com/limits/clock"
)

// Limiter holds a bucket for each key.
type Limiter struct {
	mu      sync.Mutex
	rate    Rate
	clock   clock.Clock
	buckets map[string]*bucket
}

// New panics for a rate that no bucket can have.
func New(rate Rate, clock clock.Clock) *Limiter {
	if rate.Tokens < 1 || rate.Per <= 0 || rate.Burst < 1 {
		panic("limiter: tokens, period and burst must be positive")
	}
	return &Limiter{rate: rate, clock: clock, buckets: make(map[string]*bucket)}
}

// Allow takes a token from the key's bucket, if there is one.
func (l *Limiter) Allow(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	return l.bucket(key, now).take(now)
}

// RetryAfter is how long the key has to wait until Allow would say yes; 0 if it would now.
func (l *Limiter) RetryAfter(key string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	return l.bucket(key, now).wait(now)
}

// Len is how many buckets are in memory.
func (l *Limiter) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets)
}

// Prune forgets the buckets that are full: a new one would be no different.
func (l *Limiter) Prune() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, bucket := range l.buckets {
		if bucket.tokens == l.rate.Burst {
			delete(l.buckets, key)
		}
	}
}

func (l *Limiter) bucket(key string, now time.Time) *bucket {
	found, ok := l.buckets[key]
	if !ok {
		found = newBucket(l.rate, now)
		l.buckets[key] = found
	}
	return found
}
