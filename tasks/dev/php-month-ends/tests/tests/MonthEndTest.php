<?php

declare(strict_types=1);

require_once __DIR__ . '/../src/autoload.php';

use PHPUnit\Framework\TestCase;
use Recur\Rule;
use Recur\Schedule;

final class MonthEndTest extends TestCase
{
    private static function schedule(string $first, Rule $rule, ?int $count = null): Schedule
    {
        return new Schedule(new DateTimeImmutable($first), $rule, $count);
    }

    private static function text(array $dates): string
    {
        return implode(' ', array_map(static fn ($date) => $date->format('Y-m-d'), $dates));
    }

    private static function day(string $text, string $zone = 'UTC'): DateTimeImmutable
    {
        return new DateTimeImmutable($text, new DateTimeZone($zone));
    }

    public function testTheLastDayOfShortMonths(): void
    {
        $dates = self::schedule('2024-01-31', Rule::monthly())->take(5);
        $this->assertSame('2024-01-31 2024-02-29 2024-03-31 2024-04-30 2024-05-31', self::text($dates));
        $dates = self::schedule('2022-12-30', Rule::monthly())->take(4);
        $this->assertSame('2022-12-30 2023-01-30 2023-02-28 2023-03-30', self::text($dates));
    }

    public function testIntervalsCountFromTheFirstDate(): void
    {
        $dates = self::schedule('2024-01-31', Rule::monthly(13))->take(3);
        $this->assertSame('2024-01-31 2025-02-28 2026-03-31', self::text($dates));
    }

    public function testLeapDays(): void
    {
        $dates = self::schedule('2024-02-29', Rule::yearly())->take(5);
        $this->assertSame('2024-02-29 2025-02-28 2026-02-28 2027-02-28 2028-02-29', self::text($dates));
        $dates = self::schedule('2096-02-29', Rule::yearly(4))->take(3);
        $this->assertSame('2096-02-29 2100-02-28 2104-02-29', self::text($dates));
    }

    public function testNextAtMonthEnds(): void
    {
        $schedule = self::schedule('2024-01-31', Rule::monthly());
        $this->assertSame('2024-02-29', $schedule->next(self::day('2024-01-31'))->format('Y-m-d'));
        $this->assertSame('2024-02-29', $schedule->next(self::day('2024-02-28'))->format('Y-m-d'));
        $this->assertSame('2024-03-31', $schedule->next(self::day('2024-02-29'))->format('Y-m-d'));
        $this->assertSame('2024-01-31', $schedule->next(self::day('2023-05-05'))->format('Y-m-d'));
    }

    public function testBetweenAtMonthEnds(): void
    {
        $dates = self::schedule('2024-01-31', Rule::monthly())->between(self::day('2024-02-29'), self::day('2024-04-30'));
        $this->assertSame('2024-02-29 2024-03-31 2024-04-30', self::text($dates));
    }

    public function testTimesOfDayDoNotMatter(): void
    {
        $schedule = self::schedule('2024-01-01 15:00', Rule::weekly());
        $dates = $schedule->between(self::day('2024-01-08 09:00'), self::day('2024-01-15 00:00'));
        $this->assertSame('2024-01-08 2024-01-15', self::text($dates));
        $this->assertSame('2024-01-15', $schedule->next(self::day('2024-01-08 00:00'))->format('Y-m-d'));
        $this->assertSame('2024-01-15', $schedule->next(self::day('2024-01-08 23:59'))->format('Y-m-d'));
    }

    public function testADayIsWhatItSaysInItsOwnZone(): void
    {
        $schedule = self::schedule('2024-01-01', Rule::daily());
        foreach (['Pacific/Auckland', 'America/Los_Angeles', 'UTC'] as $zone) {
            $day = self::day('2024-03-10 12:00', $zone);
            $this->assertSame('2024-03-11', $schedule->next($day)->format('Y-m-d'), $zone);
            $this->assertSame('2024-03-10', self::text($schedule->between($day, $day)), $zone);
        }
    }

    public function testACountLimitsWhatIsFound(): void
    {
        $schedule = self::schedule('2024-01-31', Rule::monthly(), 2);
        $this->assertNull($schedule->next(self::day('2024-02-29')));
        $this->assertSame('2024-02-29', self::text($schedule->between(self::day('2024-02-01'), self::day('2030-01-01'))));
        $this->assertSame('', self::text($schedule->between(self::day('2024-03-01'), self::day('2030-01-01'))));
    }

    public function testNothingBeforeTheFirstDate(): void
    {
        $schedule = self::schedule('2024-01-31', Rule::daily(3));
        $this->assertSame('', self::text($schedule->between(self::day('2023-01-01'), self::day('2024-01-30'))));
        $dates = $schedule->between(self::day('2023-01-01'), self::day('2024-02-05'));
        $this->assertSame('2024-01-31 2024-02-03', self::text($dates));
    }

    public function testAnEmptyRangeHasNoDates(): void
    {
        $schedule = self::schedule('2024-01-31', Rule::daily());
        $this->assertSame('', self::text($schedule->between(self::day('2024-03-02'), self::day('2024-03-01'))));
    }

    /** @dataProvider rules */
    public function testFarDaysAgreeWithCounting(Rule $rule): void
    {
        $schedule = self::schedule('2024-01-31', $rule);
        $dates = $schedule->take(120);
        foreach ([0, 1, 57, 118] as $index) {
            $this->assertSame(self::text([$dates[$index + 1]]), self::text([$schedule->next($dates[$index])]));
            $before = $dates[$index + 1]->modify('-1 day');
            $this->assertSame(self::text([$dates[$index + 1]]), self::text([$schedule->next($before)]));
        }
        $this->assertSame(self::text(array_slice($dates, 40, 31)), self::text($schedule->between($dates[40], $dates[70])));
    }

    public static function rules(): array
    {
        return [
            'daily' => [Rule::daily()],
            'every 3 days' => [Rule::daily(3)],
            'every 2 weeks' => [Rule::weekly(2)],
            'monthly' => [Rule::monthly()],
            'every 5 months' => [Rule::monthly(5)],
            'yearly' => [Rule::yearly()],
            'every 3 years' => [Rule::yearly(3)],
        ];
    }

    public function testDaysInTheFarFutureAreFast(): void
    {
        $schedule = self::schedule('2024-01-31', Rule::daily());
        $deadline = microtime(true) + 3; // all of it takes milliseconds if dates aren't counted one by one
        for ($i = 0; $i < 200; $i++) {
            $this->assertLessThan($deadline, microtime(true), "only $i of 200 look-ups in 3 seconds");
            $this->assertSame('9000-01-02', $schedule->next(self::day('9000-01-01'))->format('Y-m-d'));
            $this->assertCount(2, $schedule->between(self::day('9000-01-01'), self::day('9000-01-02')));
        }
    }
}
