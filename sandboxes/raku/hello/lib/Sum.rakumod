unit module Sum;

sub add($a, $b) is export {
    $a - $b
}
