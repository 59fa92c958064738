use std::fmt;

/// `[start, end)`: never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval {
    start: i64,
    end: i64,
}

/// The end of an interval must lie beyond its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyInterval;

impl fmt::Display for EmptyInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an interval's end must lie beyond its start")
    }
}

impl std::error::Error for EmptyInterval {}

impl Interval {
    pub fn new(start: i64, end: i64) -> Result<Self, EmptyInterval> {
        if start < end {
            Ok(Interval { start, end })
        } else {
            Err(EmptyInterval)
        }
    }

    pub fn start(&self) -> i64 {
        self.start
    }

    pub fn end(&self) -> i64 {
        self.end
    }

    /// How many integers it holds; a u64, for an interval may be longer than an i64 can count.
    pub fn len(&self) -> u64 {
        self.end.wrapping_sub(self.start) as u64
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn contains(&self, value: i64) -> bool {
        self.start <= value && value < self.end
    }

    /// Do the two share an integer?
    pub fn overlaps(&self, other: &Interval) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{},{})", self.start, self.end)
    }
}
