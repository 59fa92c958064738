use strict;
use warnings;
use Test::More;
use Sum;

is(Sum::add(2, 3), 5, 'adds');
is(Sum::add(2, 0), 2, 'adds nothing');
done_testing();
