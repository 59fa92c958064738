use hello::add;

#[test]
fn adds() {
    assert_eq!(add(2, 3), 5);
}

#[test]
fn adds_nothing() {
    assert_eq!(add(2, 0), 2);
}
