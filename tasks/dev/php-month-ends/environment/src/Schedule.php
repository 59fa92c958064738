<?php

declare(strict_types=1);

namespace Recur;

use DateTimeImmutable;
use Generator;
use InvalidArgumentException;

/** Dates from a first one on; `count` limits how many there are, null is no limit. */
final class Schedule
{
    private readonly DateTimeImmutable $first;

    public function __construct(DateTimeImmutable $first, private readonly Rule $rule, private readonly ?int $count = null)
    {
        if ($count !== null && $count < 1) {
            throw new InvalidArgumentException("a schedule has at least 1 date, got $count");
        }
        $this->first = $first->setTime(0, 0);
    }

    /** @return list<DateTimeImmutable> the first dates, at most `limit` */
    public function take(int $limit): array
    {
        $dates = [];
        foreach ($this->dates() as $date) {
            if (count($dates) >= $limit) {
                break;
            }
            $dates[] = $date;
        }
        return $dates;
    }

    /** @return list<DateTimeImmutable> the dates from one day to another, both included */
    public function between(DateTimeImmutable $from, DateTimeImmutable $to): array
    {
        $found = [];
        foreach ($this->dates() as $date) {
            if ($date > $to) {
                break;
            }
            if ($date >= $from) {
                $found[] = $date;
            }
        }
        return $found;
    }

    /** The first date after a day; null if there is none. */
    public function next(DateTimeImmutable $day): ?DateTimeImmutable
    {
        foreach ($this->dates() as $date) {
            if ($date > $day) {
                return $date;
            }
        }
        return null;
    }

    /** @return Generator<DateTimeImmutable> */
    private function dates(): Generator
    {
        $date = $this->first;
        for ($number = 0; $this->count === null || $number < $this->count; $number++) {
            yield $date;
            $date = $this->rule->after($date);
        }
    }
}
