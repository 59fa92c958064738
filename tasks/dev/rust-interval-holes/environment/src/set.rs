use crate::interval::{EmptyInterval, Interval};
use std::fmt;

/// A set of integers. Its intervals are sorted and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalSet {
    intervals: Vec<Interval>,
}

impl IntervalSet {
    pub fn new() -> Self {
        IntervalSet::default()
    }

    /// The intervals in order.
    pub fn iter(&self) -> impl Iterator<Item = &Interval> {
        self.intervals.iter()
    }

    /// How many integers the set holds.
    pub fn len(&self) -> u64 {
        self.intervals.iter().map(Interval::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    pub fn contains(&self, value: i64) -> bool {
        let index = self.intervals.partition_point(|interval| interval.end() <= value);
        self.intervals.get(index).map_or(false, |interval| interval.contains(value))
    }

    /// Adds `[start, end)`.
    pub fn insert(&mut self, start: i64, end: i64) -> Result<(), EmptyInterval> {
        let mut added = Interval::new(start, end)?;
        let mut kept = Vec::with_capacity(self.intervals.len() + 1);
        for &interval in &self.intervals {
            if interval.overlaps(&added) {
                added = Interval::new(added.start().min(interval.start()), added.end().max(interval.end()))?;
            } else {
                kept.push(interval);
            }
        }
        let index = kept.partition_point(|interval| interval.start() < added.start());
        kept.insert(index, added);
        self.intervals = kept;
        Ok(())
    }

    /// Takes `[start, end)` out; integers that aren't in the set don't matter.
    pub fn remove(&mut self, start: i64, end: i64) -> Result<(), EmptyInterval> {
        let hole = Interval::new(start, end)?;
        if let Some(index) = self.intervals.iter().position(|interval| interval.overlaps(&hole)) {
            let interval = self.intervals.remove(index);
            if interval.start() < hole.start() {
                self.intervals.insert(index, Interval::new(interval.start(), hole.start())?);
            } else if hole.end() < interval.end() {
                self.intervals.insert(index, Interval::new(hole.end(), interval.end())?);
            }
        }
        Ok(())
    }

    /// The integers of `[start, end)` that aren't in the set.
    pub fn gaps(&self, start: i64, end: i64) -> Result<IntervalSet, EmptyInterval> {
        let mut gaps = IntervalSet::new();
        gaps.insert(start, end)?;
        for interval in &self.intervals {
            gaps.remove(interval.start(), interval.end())?;
        }
        Ok(gaps)
    }
}

impl fmt::Display for IntervalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, interval) in self.intervals.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{interval}")?;
        }
        Ok(())
    }
}
