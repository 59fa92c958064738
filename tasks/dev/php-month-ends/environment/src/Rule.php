<?php

declare(strict_types=1);

namespace Recur;

use DateTimeImmutable;
use InvalidArgumentException;

/** How a date follows the one before. */
final class Rule
{
    private function __construct(public readonly string $unit, public readonly int $interval)
    {
        if ($interval < 1) {
            throw new InvalidArgumentException("an interval is at least 1, got $interval");
        }
    }

    public static function daily(int $interval = 1): self
    {
        return new self('day', $interval);
    }

    public static function weekly(int $interval = 1): self
    {
        return new self('week', $interval);
    }

    public static function monthly(int $interval = 1): self
    {
        return new self('month', $interval);
    }

    public static function yearly(int $interval = 1): self
    {
        return new self('year', $interval);
    }

    /** The date that follows. */
    public function after(DateTimeImmutable $date): DateTimeImmutable
    {
        return $date->modify("+{$this->interval} {$this->unit}");
    }
}
