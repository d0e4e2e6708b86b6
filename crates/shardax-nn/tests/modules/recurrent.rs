//! Recurrent layers over sequences of different lengths.

use super::quick::setup;
use shardax_nn::prelude::*;

/// The running sum of each sequence.
#[derive(Module, Clone)]
struct Sum {}

impl RnnCell for Sum {
    type Carry = Array;

    fn initialize_carry(&self, input_shape: &[usize]) -> Array {
        zeros(input_shape)
    }

    fn forward(&self, carry: Array, x: Array) -> (Array, Array) {
        let sum = carry + x;
        (sum.clone(), sum)
    }
}

/// Lengths beyond the number of steps count as this number. Flax rotates such sequences in reverse.
#[test]
fn lengths_beyond_the_number_of_steps() -> Result<()> {
    setup();
    let x = arange(0..10).astype(DType::F32).reshape([2, 5, 1]);
    let run = |reverse: bool, lengths: Array| {
        Rnn::new(Sum {}).reverse(reverse).keep_order(true).run(&x, None, Some(&lengths))
    };
    for reverse in [false, true] {
        let results = jit(|lengths: Array| run(reverse, lengths));
        let (carry, y) = results.call(array([5, 4]))?;
        assert_eq!(carry.to_vec::<f32>()?, [10.0, 26.0]);
        for lengths in [array([7, 4]), array_of([120, 4], DType::U8), array_of([1i64 << 31, 4], DType::I64)] {
            let (long_carry, long_y) = results.call(lengths)?;
            assert_eq!(long_carry.to_vec::<f32>()?, [10.0, 26.0]);
            assert_eq!(long_y.to_vec::<f32>()?, y.to_vec::<f32>()?);
        }
    }
    Ok(())
}

/// Flax returns the only vector for every index.
#[test]
fn embed_of_one_vector() -> Result<()> {
    setup();
    let table = Embed::new(1, 3, &mut Rngs::new(0));
    let y = table.forward(array([0, -1, 1])).to_vec::<f32>()?;
    assert!(y[..3] == y[3..6] && y[..3].iter().all(|x| x.is_finite()) && y[6..].iter().all(|x| x.is_nan()), "{y:?}");
    Ok(())
}
