<?php

declare(strict_types=1);

namespace Recur;

/** Text for people. */
final class Describe
{
    public static function rule(Rule $rule): string
    {
        return $rule->interval === 1 ? "every {$rule->unit}" : "every {$rule->interval} {$rule->unit}s";
    }
}
