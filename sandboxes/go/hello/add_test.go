package hello

import "testing"

func TestAdds(t *testing.T) {
	if got := Add(2, 3); got != 5 {
		t.Errorf("got %d, expected 5", got)
	}
}

func TestAddsNothing(t *testing.T) {
	if got := Add(2, 0); got != 2 {
		t.Errorf("got %d, expected 2", got)
	}
}
