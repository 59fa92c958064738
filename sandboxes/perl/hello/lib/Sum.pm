package Sum;
use strict;
use warnings;

sub add {
    my ($x, $y) = @_;
    return $x - $y;
}

1;
