//! Mixtures of streams.

use serde_json::{Value, json};
use shardax::error::{Error, ErrorKind, Result};

use super::stream::{Stream, number};

/// A mixture of streams, each in proportion to its weight, in an order that follows from a seed. It ends with the
/// first stream that ends.
#[derive(Clone, Debug)]
pub struct Mix<S> {
    streams: Vec<S>,
    /// The cumulative weights.
    limits: Vec<f64>,
    seed: u64,
    given: u64,
}

impl<S: Stream> Mix<S> {
    /// Mixes streams by weight. For each item, `seed` decides from which stream it comes.
    ///
    /// ```
    /// use shardax_train::data::{Mix, Source, Stream};
    /// fn of(x: usize) -> impl Stream<Item = usize> {
    ///     (10usize, move |_| Ok(x)).stream()
    /// }
    /// let mut mixed = Mix::new(vec![(of(0), 3.0), (of(1), 1.0)], 7)?;
    /// let ones: usize = mixed.items().take(4000).map(|x| x.expect("an item")).sum();
    /// assert!((900..1100).contains(&ones));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a weight is negative or not finite, or if no weight is positive.
    #[track_caller]
    pub fn new(streams: Vec<(S, f64)>, seed: u64) -> Result<Self> {
        let (streams, weights): (Vec<S>, Vec<f64>) = streams.into_iter().unzip();
        let sum: f64 = weights.iter().sum();
        if weights.iter().any(|w| *w < 0.0) || !(sum.is_finite() && sum > 0.0) {
            let message = format!("weights of streams must be finite, not negative, and not all 0, got {weights:?}");
            return Err(Error::new(ErrorKind::Value, message)
                .help("pass at least one stream with a positive weight, and no negative weights")
                .at(std::panic::Location::caller()));
        }
        let mut limit = 0.0;
        let limits = weights.iter().map(|weight| {
            limit += weight / sum;
            limit
        });
        Ok(Mix { limits: limits.collect(), streams, seed, given: 0 })
    }
}

impl<S: Stream> Stream for Mix<S> {
    type Item = S::Item;

    fn next_item(&mut self) -> Option<Result<S::Item>> {
        // Depends only on the item's number, so that the position is a number.
        let seed = self.seed ^ self.given.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let draw = fastrand::Rng::with_seed(seed).f64();
        // Rounding may leave the last limit below 1. Then the last stream is chosen whose weight is not 0, which is the
        // first with the last limit.
        let last_limit = self.limits.last()?;
        let last_with_weight = self.limits.iter().position(|limit| limit == last_limit)?;
        let chosen = self.limits.iter().position(|limit| draw < *limit).unwrap_or(last_with_weight);
        self.given = self.given.wrapping_add(1);
        self.streams[chosen].next_item()
    }

    fn position(&self) -> Value {
        let streams: Vec<Value> = self.streams.iter().map(Stream::position).collect();
        json!({ "given": self.given, "streams": streams })
    }

    fn seek(&mut self, position: &Value) -> Result<()> {
        let delivered = number(position, "given")?;
        let positions =
            position["streams"].as_array().filter(|all| all.len() == self.streams.len()).ok_or_else(|| {
                let message = format!("the position {position} does not belong to {} streams", self.streams.len());
                Error::new(ErrorKind::Value, message).help("mix the same streams as before")
            })?;
        self.given = delivered;
        self.streams.iter_mut().zip(positions).try_for_each(|(stream, position)| stream.seek(position))
    }
}
