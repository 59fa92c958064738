use intervals::{parse, IntervalSet};

fn removed(text: &str, start: i64, end: i64) -> String {
    let mut set = parse(text).unwrap();
    set.remove(start, end).unwrap();
    set.to_string()
}

#[test]
fn a_hole_inside_leaves_both_sides() {
    assert_eq!(removed("[0,10)", 3, 5), "[0,3) [5,10)");
    assert_eq!(removed("[0,3)", 1, 2), "[0,1) [2,3)");
}

#[test]
fn a_hole_over_many_intervals_takes_from_all() {
    assert_eq!(removed("[0,4) [6,9) [12,20)", 2, 15), "[0,2) [15,20)");
    assert_eq!(removed("[0,4) [6,9) [12,20)", -1, 30), "");
    assert_eq!(removed("[0,4) [6,9) [12,20)", 0, 12), "[12,20)");
}

#[test]
fn a_hole_between_intervals_changes_nothing() {
    assert_eq!(removed("[0,4) [6,9)", 4, 6), "[0,4) [6,9)");
}

#[test]
fn gaps_are_what_is_missing() {
    let set = parse("[2,3) [5,6)").unwrap();
    assert_eq!(set.gaps(0, 10).unwrap().to_string(), "[0,2) [3,5) [6,10)");
    assert_eq!(set.gaps(2, 3).unwrap().to_string(), "");
    assert_eq!(IntervalSet::new().gaps(1, 2).unwrap().to_string(), "[1,2)");
}

#[test]
fn touching_intervals_are_joined() {
    assert_eq!(parse("[540,600) [600,660)").unwrap(), parse("[540,660)").unwrap());
    assert_eq!(parse("[600,660) [540,600)").unwrap().to_string(), "[540,660)");
    assert_eq!(parse("[0,2) [4,6) [2,4)").unwrap().to_string(), "[0,6)");
}

#[test]
fn one_integer_apart_is_not_touching() {
    assert_eq!(parse("[0,2) [3,5)").unwrap().to_string(), "[0,2) [3,5)");
}

#[test]
fn the_extremes_are_no_trap() {
    let mut set = IntervalSet::new();
    set.insert(i64::MIN, 0).unwrap();
    set.insert(0, i64::MAX).unwrap();
    assert_eq!(set.iter().count(), 1);
    set.remove(-1, 1).unwrap();
    assert_eq!(set.len(), u64::MAX - 2);
}

#[test]
fn sets_agree_with_a_table_of_flags() {
    let mut seed = 7u64;
    let mut next = |limit: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % limit
    };
    for _ in 0..200 {
        let mut set = IntervalSet::new();
        let mut flags = [false; 40];
        for _ in 0..12 {
            let start = next(39) as usize;
            let end = start + 1 + next((40 - start - 1) as u64 + 1) as usize;
            let end = end.min(40);
            let is_insert = next(2) == 0;
            if is_insert {
                set.insert(start as i64, end as i64).unwrap();
            } else {
                set.remove(start as i64, end as i64).unwrap();
            }
            flags[start..end].iter_mut().for_each(|flag| *flag = is_insert);
        }
        let mut direct = IntervalSet::new();
        for (value, flag) in flags.iter().enumerate() {
            assert_eq!(set.contains(value as i64), *flag);
            if *flag {
                direct.insert(value as i64, value as i64 + 1).unwrap();
            }
        }
        assert_eq!(set, direct);
        assert_eq!(set.len(), flags.iter().filter(|flag| **flag).count() as u64);
    }
}
