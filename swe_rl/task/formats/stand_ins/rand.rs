//! What some rows use of the crate `rand` (its interface of 0.7), which no sandbox can fetch.
//! Its numbers are the same in every run, so that a verdict is, too.

use std::cell::Cell;

thread_local! {
    static STATE: Cell<u64> = Cell::new(0x9e37_79b9_7f4a_7c15);
}

/// SplitMix64.
fn next() -> u64 {
    STATE.with(|state| {
        let seed = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(seed);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

pub trait Draw: Sized {
    fn draw() -> Self;
    fn between(low: Self, high: Self) -> Self;
}

macro_rules! draw {
    ($($kind:ty),*) => {$(
        impl Draw for $kind {
            fn draw() -> Self {
                next() as $kind
            }
            fn between(low: Self, high: Self) -> Self {
                assert!(low < high, "an empty range");
                (low as i128 + (next() as i128) % (high as i128 - low as i128)) as $kind
            }
        }
    )*};
}

draw!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

pub struct ThreadRng;

pub fn thread_rng() -> ThreadRng {
    ThreadRng
}

pub fn random<T: Draw>() -> T {
    T::draw()
}

pub trait Rng {
    fn gen<T: Draw>(&mut self) -> T {
        T::draw()
    }
    /// `high` isn't among the results.
    fn gen_range<T: Draw>(&mut self, low: T, high: T) -> T {
        T::between(low, high)
    }
}

impl Rng for ThreadRng {}
