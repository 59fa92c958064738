use intervals::{parse, EmptyInterval, IntervalSet, ParseError};

#[test]
fn overlapping_intervals_are_merged() {
    assert_eq!(parse("[1,4) [3,9) [20,21)").unwrap().to_string(), "[1,9) [20,21)");
}

#[test]
fn contains_respects_the_open_end() {
    let set = parse("[1,4) [6,9)").unwrap();
    let inside: Vec<i64> = (0..10).filter(|value| set.contains(*value)).collect();
    assert_eq!(inside, [1, 2, 3, 6, 7, 8]);
}

#[test]
fn removing_an_end_shortens_an_interval() {
    let mut set = parse("[0,10)").unwrap();
    set.remove(7, 12).unwrap();
    set.remove(-5, 2).unwrap();
    assert_eq!(set.to_string(), "[2,7)");
}

#[test]
fn removing_a_whole_interval_empties_the_set() {
    let mut set = parse("[0,10)").unwrap();
    set.remove(0, 10).unwrap();
    assert!(set.is_empty());
}

#[test]
fn empty_intervals_are_refused() {
    let mut set = IntervalSet::new();
    assert_eq!(set.insert(3, 3), Err(EmptyInterval));
    assert_eq!(set.remove(4, 3), Err(EmptyInterval));
}

#[test]
fn bad_text_is_named() {
    assert_eq!(parse("[1,4) [6,x)"), Err(ParseError("[6,x)".to_string())));
}
