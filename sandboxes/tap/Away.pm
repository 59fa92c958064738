# Recipe of Perl: `perl -MAway TEST_FILE` takes the test files away, which $SWE_RL_HIDDEN names one a line, before any code that
# could read them: perl holds its script open. They are put back at the end of that process. What equals everything, by an
# overloaded operator, isn't what a test expects.
package Away;
use strict;
use warnings;

use Test::Builder;
use overload ();

my ($owner, %text) = $$;
my $is_eq = \&Test::Builder::is_eq;
{
    no warnings 'redefine';
    *Test::Builder::is_eq = sub {
        my ($self, $got, $expected, $name) = @_;
        if (ref $got && overload::Overloaded($got) && !grep { !eval { $got eq rand() . "\t$_" } } 1 .. 4) {
            return $self->ok(0, $name) || $self->diag('compares equal to everything');
        }
        goto &$is_eq;
    };
}

sub import {
    my $list = delete $ENV{SWE_RL_HIDDEN} or return;
    open my $names, '<', $list or return;
    chomp(my @paths = <$names>);
    for my $path (@paths) {
        open my $in, '<:raw', $path or next;
        local $/;
        $text{$path} = <$in> // '';
    }
    unlink keys %text;
}

# Compiled first of all, so the last to run.
END {
    local ($?, $!);
    for my $path ($$ == $owner ? keys %text : ()) {
        next if -e $path || -l $path; # what somebody else put there stays, to be found
        open my $out, '>:raw', $path or next;
        print {$out} $text{$path};
    }
}

1;
