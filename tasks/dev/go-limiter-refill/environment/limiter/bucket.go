package limiter

import "time"

// Rate is how fast a bucket fills, and how much it holds.
type Rate struct {
	Tokens int           // gained every Per, evenly
	Per    time.Duration // must be positive
	Burst  int           // the most a bucket holds
}

// bucket holds whole tokens.
type bucket struct {
	rate   Rate
	tokens int
	filled time.Time // up to when tokens were gained
}

func newBucket(rate Rate, now time.Time) *bucket {
	return &bucket{rate: rate, tokens: rate.Burst, filled: now}
}

// refill gives the tokens that were gained since the last time.
func (b *bucket) refill(now time.Time) {
	gained := int(now.Sub(b.filled) * time.Duration(b.rate.Tokens) / b.rate.Per)
	b.tokens += gained
	if b.tokens > b.rate.Burst {
		b.tokens = b.rate.Burst
	}
	b.filled = now
}

// take takes one token, if there is one.
func (b *bucket) take(now time.Time) bool {
	b.refill(now)
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}

// wait is how long it takes until there is a token; 0 if there is one.
func (b *bucket) wait(now time.Time) time.Duration {
	b.refill(now)
	if b.tokens > 0 {
		return 0
	}
	return b.rate.Per / time.Duration(b.rate.Tokens)
}
