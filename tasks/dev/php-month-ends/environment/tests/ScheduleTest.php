<?php

declare(strict_types=1);

require_once __DIR__ . '/../src/autoload.php';

use PHPUnit\Framework\TestCase;
use Recur\Describe;
use Recur\Rule;
use Recur\Schedule;

final class ScheduleTest extends TestCase
{
    private static function text(array $dates): string
    {
        return implode(' ', array_map(static fn ($date) => $date->format('Y-m-d'), $dates));
    }

    public function testDaysAndWeeks(): void
    {
        $first = new DateTimeImmutable('2024-02-27');
        $this->assertSame('2024-02-27 2024-02-28 2024-02-29', self::text((new Schedule($first, Rule::daily()))->take(3)));
        $this->assertSame('2024-02-27 2024-03-12', self::text((new Schedule($first, Rule::weekly(2)))->take(2)));
    }

    public function testMonthsAndYears(): void
    {
        $first = new DateTimeImmutable('2023-11-15');
        $this->assertSame('2023-11-15 2024-01-15 2024-03-15', self::text((new Schedule($first, Rule::monthly(2)))->take(3)));
        $this->assertSame('2023-11-15 2024-11-15', self::text((new Schedule($first, Rule::yearly()))->take(2)));
    }

    public function testBetweenIncludesBothDays(): void
    {
        $schedule = new Schedule(new DateTimeImmutable('2024-01-01'), Rule::weekly());
        $dates = $schedule->between(new DateTimeImmutable('2024-01-08'), new DateTimeImmutable('2024-01-15'));
        $this->assertSame('2024-01-08 2024-01-15', self::text($dates));
    }

    public function testACountEndsASchedule(): void
    {
        $schedule = new Schedule(new DateTimeImmutable('2024-01-01'), Rule::daily(), 2);
        $this->assertSame('2024-01-01 2024-01-02', self::text($schedule->take(5)));
        $this->assertNull($schedule->next(new DateTimeImmutable('2024-01-02')));
    }

    public function testBadNumbersAreRefused(): void
    {
        $this->expectException(InvalidArgumentException::class);
        Rule::monthly(0);
    }

    public function testDescriptions(): void
    {
        $this->assertSame('every month', Describe::rule(Rule::monthly()));
        $this->assertSame('every 3 weeks', Describe::rule(Rule::weekly(3)));
    }
}
