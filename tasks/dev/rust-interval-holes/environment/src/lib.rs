//! Sets of integers as sorted, half-open intervals.

mod interval;
mod parse;
mod set;

pub use interval::{EmptyInterval, Interval};
pub use parse::{parse, ParseError};
pub use set::IntervalSet;
