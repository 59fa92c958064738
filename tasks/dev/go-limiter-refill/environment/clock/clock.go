// Package clock says what time it is.
package clock

import "time"

// Clock is where a limiter's time comes from.
type Clock interface {
	Now() time.Time
}

// System is the machine's clock.
type System struct{}

// Now is the current time.
func (System) Now() time.Time { return time.Now() }

// Manual stands still until it is moved.
type Manual struct {
	now time.Time
}

// NewManual starts at some fixed moment.
func NewManual() *Manual {
	return &Manual{now: time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)}
}

// Now is the time it was moved to.
func (m *Manual) Now() time.Time { return m.now }

// Advance moves it; a negative duration moves it back.
func (m *Manual) Advance(d time.Duration) { m.now = m.now.Add(d) }
