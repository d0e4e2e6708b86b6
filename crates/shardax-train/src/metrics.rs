//! Running averages that leave their values on the devices until they are read.

use shardax::error::Result;
use shardax::prelude::*;

/// A running average of scalars.
///
/// Adding waits for nothing: reading a value makes the host wait for the device, so that happens once, in
/// [`value`](Average::value), and not in each step.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::Average;
///
/// let mut loss = Average::new();
/// loss.add(array(2.0f32));
/// loss.add(array(1.0f32));
/// assert_eq!(loss.value()?, 1.5);
///
/// // 5 right of 8, and 1 right of 2.
/// let mut accuracy = Average::new();
/// accuracy.add_sum(array(5), array(8));
/// accuracy.add_sum(array(1), array(2));
/// assert_eq!(accuracy.value()?, 0.6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Average {
    parts: Vec<(Array, Array)>,
}

impl Average {
    /// The average of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts `value`, a scalar, once.
    pub fn add(&mut self, value: impl Operand) {
        self.add_sum(value, 1);
    }

    /// Counts `count` values at once, of which `sum` is the sum; both are scalars.
    pub fn add_sum(&mut self, sum: impl Operand, count: impl Operand) {
        self.parts.push((sum.into_array(), count.into_array()));
    }

    /// The average of all values so far; NaN when there are none. Waits for them.
    ///
    /// Fails when one is not a scalar, or when its computation failed.
    pub fn value(&self) -> Result<f64> {
        let (mut sum, mut count) = (0.0, 0.0);
        for (s, n) in &self.parts {
            sum += s.to_f64()?;
            count += n.to_f64()?;
        }
        Ok(sum / count)
    }
}
