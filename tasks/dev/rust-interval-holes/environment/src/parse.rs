use crate::set::IntervalSet;
use std::fmt;

/// The part of the text that isn't an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(pub String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an interval: {:?}", self.0)
    }
}

impl std::error::Error for ParseError {}

/// Reads what `Display` writes: `[1,4) [6,9)`. Intervals may come in any order and overlap.
pub fn parse(text: &str) -> Result<IntervalSet, ParseError> {
    let mut set = IntervalSet::new();
    for word in text.split_whitespace() {
        let error = || ParseError(word.to_string());
        let inner = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(')')).ok_or_else(error)?;
        let (start, end) = inner.split_once(',').ok_or_else(error)?;
        let start = start.parse().map_err(|_| error())?;
        let end = end.parse().map_err(|_| error())?;
        set.insert(start, end).map_err(|_| error())?;
    }
    Ok(set)
}
