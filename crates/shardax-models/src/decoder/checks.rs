//! Checks of the configuration of decoders.

use shardax::error::Result;
use shardax_nn::prelude::*;

use super::{
    DecoderConfig, DeltaConfig, ExpertsConfig, LatentConfig, NormKind, Positions, QkNorm, ResidualSums, RgLruConfig,
    StateSpaceConfig,
};
use crate::error::value_error;

impl DecoderConfig {
    /// Checks the configuration.
    ///
    /// # Errors
    /// Returns an error if a size is 0, if sizes do not divide each other, if options exclude each other, or if a matrix
    /// would be too large.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let location = std::panic::Location::caller();
        let checked = self
            .check_sizes()
            .and_then(|()| self.check_layers())
            .and_then(|()| self.check_shared())
            .and_then(|()| self.check_latent_attention())
            .and_then(|()| self.check_overflow())
            .and_then(|()| self.check_lists_of_layers())
            .and_then(|()| self.check_experts_and_positions())
            .and_then(|()| self.check_delayed_experts())
            .and_then(|()| self.check_convolution_and_linear_attention())
            .and_then(|()| self.check_windows())
            .and_then(|()| self.check_norms())
            .and_then(|()| self.check_rotary_features());
        checked.map_err(|error| error.at(location))
    }

    fn check_sizes(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("layers", self.layers),
            ("features", self.features),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("hidden", self.hidden),
            ("value_dim", self.value_dim.unwrap_or(1)),
            ("embedding_features", self.embedding_features.unwrap_or(1)),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(value_error(
                format!("a decoder's {name} must be positive, got 0"),
                "set it to a positive size",
            ));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let message = format!("kv_heads ({}) does not divide heads ({})", self.kv_heads, self.heads);
            return Err(value_error(message, "choose a number of heads that is a multiple of kv_heads"));
        }
        Ok(())
    }

    /// Returns true if an earlier layer can lend its keys to a layer. A layer that borrows keys itself has none to lend.
    fn lends(&self, earlier: usize, layer: usize) -> bool {
        earlier < layer && self.key_layer(earlier).is_none() && self.heads_of(layer) == self.heads_of(earlier)
    }

    /// Checks the sizes and the options of single layers.
    fn check_layers(&self) -> Result<()> {
        if let Some(sizes) = self.layer_heads.iter().find(|sizes| !sizes.are_valid()) {
            return Err(value_error(
                format!("{sizes:?} does not describe heads"),
                "use positive sizes, and kv_heads that divide heads",
            ));
        }
        if self.layer_hidden.contains(&0) {
            return Err(value_error("layer_hidden has a 0", "set the sizes of all MLPs to at least 1"));
        }
        let borrowers = self.key_layers.iter().enumerate().filter_map(|(layer, earlier)| Some((layer, (*earlier)?)));
        if let Some((layer, earlier)) = borrowers.into_iter().find(|(layer, earlier)| !self.lends(*earlier, *layer)) {
            let message = format!("layer {layer} cannot use the keys of layer {earlier}");
            return Err(value_error(message, "choose an earlier layer with the same heads that has its own keys"));
        }
        if self.value_dim.is_some_and(|value_dim| value_dim != self.head_dim)
            && (self.values_from_keys.contains(&true) || self.attention_gate.is_some())
        {
            let message = "value_dim differs from head_dim, but values_from_keys or attention_gate needs equal sizes";
            return Err(value_error(message, "set value_dim to None, or do not set the other field"));
        }
        let has_other_values = self.value_dim.is_some_and(|value_dim| value_dim != self.head_dim);
        if (self.differential || self.value_scores.is_some()) && (has_other_values || !self.layer_heads.is_empty()) {
            let message =
                "differential or value_scores is set, but heads or their values have other sizes than head_dim";
            return Err(value_error(message, "set value_dim to None and layer_heads to an empty list"));
        }
        if self.differential && !(self.heads.is_multiple_of(2) && self.kv_heads.is_multiple_of(2)) {
            let message =
                format!("differential needs pairs of heads, got {} heads and {} kv_heads", self.heads, self.kv_heads);
            return Err(value_error(message, "use even numbers of heads"));
        }
        if self.value_scores == Some(0) {
            return Err(value_error(
                "value_scores is 0, so that queries see no keys",
                "set it to at least 1, or to None",
            ));
        }
        if let Some(share) = self.gate_sparsity.iter().find(|share| !(0.0..1.0).contains(*share)) {
            return Err(value_error(format!("gate_sparsity has {share}"), "use numbers from 0 to below 1"));
        }
        // Without an embedding for all layers, or without streams, sizes of 1 pass the check.
        let embedding = self.layer_embedding.as_ref().map_or([1, 1], |about| [about.vocab_size, about.features]);
        let (streams, active) =
            self.streams.as_ref().map_or(([1, 1], 0), |about| ([about.count, about.rank], about.active));
        if [embedding, streams].concat().contains(&0) || active >= streams[0] {
            let message = format!("{:?} and {:?} do not describe streams", self.layer_embedding, self.streams);
            return Err(value_error(message, "use positive sizes, and an active stream below their number"));
        }
        if self.streams.is_some() && self.layer_embedding.is_none() {
            return Err(value_error("streams is set without layer_embedding", "set layer_embedding too"));
        }
        Ok(())
    }

    fn check_latent_attention(&self) -> Result<()> {
        if let Some(LatentConfig { query_rank, rank, key_dim, rope_dim, value_dim, sparse, .. }) = &self.latent {
            let sizes = [query_rank.unwrap_or(1), *rank, *key_dim, *rope_dim, *value_dim];
            if let Some(sparse) = sparse.as_ref().filter(|sparse| !sparse.fits(*rope_dim)) {
                let message = format!("{sparse:?} does not describe an indexer for {rope_dim} rotated features");
                return Err(value_error(message, "give positive sizes, and a depth of at least rope_dim"));
            }
            if sparse.is_some() && self.without_rope.contains(&true) {
                let message = "latent.sparse is set, but layers without rotary positions cannot choose positions";
                return Err(value_error(message, "set without_rope to an empty list, or sparse to None"));
            }
            if sparse.as_ref().is_some_and(|sparse| sparse.is_shared(0)) {
                let message = "latent.sparse.shared is true for the first layer, which has no layer before it";
                return Err(value_error(message, "set the first entry to false"));
            }
            if sizes.contains(&0) || rope_dim % 2 == 1 || !matches!(self.positions, Positions::Rotary(_)) {
                let message =
                    format!("{:?} with positions {:?} does not describe attention", self.latent, self.positions);
                return Err(value_error(message, "give positive sizes, an even rope_dim, and rotary positions"));
            }
        }
        Ok(())
    }

    /// Returns an error if a matrix would be too large. This check comes first, because the others multiply sizes.
    fn check_overflow(&self) -> Result<()> {
        if let Some((name, a, b)) = self.extents().into_iter().find(|(_, a, b)| product(&[*a, *b, 8]).is_none()) {
            return Err(value_error(format!("a decoder's {name}, {a} by {b}, overflows"), "give smaller sizes"));
        }
        Ok(())
    }

    /// Lists with an entry for each layer are empty or complete.
    fn check_lists_of_layers(&self) -> Result<()> {
        let dense = self.experts.as_ref().map_or(0, |experts| experts.dense_layers.len());
        for (name, count) in [
            ("windows", self.windows.len()),
            ("without_rope", self.without_rope.len()),
            ("without_sinks", self.without_sinks.len()),
            ("without_out_bias", self.without_out_bias.len()),
            ("attention_scales", self.attention_scales.len()),
            ("norm_places", self.norm_places.len()),
            ("mlp_bounds", self.mlp_bounds.len()),
            ("experts.bounds", self.experts.as_ref().map_or(0, |experts| experts.bounds.len())),
            ("latent.sparse.shared", self.shared_positions().len()),
            ("dense_layers", dense),
            ("conv.layers", self.conv.as_ref().map_or(0, |conv| conv.layers.len())),
            ("state_space.layers", self.state_space.as_ref().map_or(0, |space| space.layers.len())),
            ("selective.layers", self.selective.as_ref().map_or(0, |space| space.layers.len())),
            ("lightning.layers", self.lightning.as_ref().map_or(0, |about| about.layers.len())),
            ("rg_lru.layers", self.rg_lru.as_ref().map_or(0, |about| about.layers.len())),
            ("residual_factors", self.residual_factors.len()),
            ("parts", self.parts.len()),
        ] {
            if count > 0 && count != self.layers {
                let message = format!("{name} has {count} entries for {} layers", self.layers);
                return Err(value_error(message, "pass one entry for each layer, or an empty list"));
            }
        }
        Ok(())
    }

    fn check_experts_and_positions(&self) -> Result<()> {
        if let Some(ExpertsConfig { count, per_token, hidden, .. }) = &self.experts
            && (*hidden == 0 || *per_token == 0 || per_token > count)
        {
            let message = format!("each token uses {per_token} of {count} experts of {hidden} features");
            return Err(value_error(
                message,
                "set the features to at least 1, and the experts of a token to at least 1 and at most the number of experts",
            ));
        }
        if let Some(logits) = self.logits
            && (logits == 0 || logits > self.vocab_size || self.tie_embeddings)
        {
            let message = format!(
                "{logits} logits for {} tokens, where tie_embeddings is {}",
                self.vocab_size, self.tie_embeddings
            );
            return Err(value_error(
                message,
                "set logits to at least 1 and at most vocab_size, and tie_embeddings to false",
            ));
        }
        if self.positions == Positions::Sines && !self.features.is_multiple_of(2) {
            let message = format!("sines and cosines of positions cannot fill {} features", self.features);
            return Err(value_error(message, "choose an even number of features"));
        }
        if let Positions::Learned(length) = self.positions
            && self.first_position >= length
        {
            let message =
                format!("a table of {length} positions has none from first_position {} on", self.first_position);
            return Err(value_error(message, "use a longer table, or a smaller first_position"));
        }
        if self.experts.as_ref().is_some_and(|experts| experts.weighs_inputs && experts.capacity_factor.is_some()) {
            let message = "experts with weighs_inputs have a capacity, and weights of inputs need experts without one";
            return Err(value_error(message, "set capacity_factor to None"));
        }
        if self.experts.as_ref().is_some_and(|experts| experts.identities > 0 && experts.capacity_factor.is_some()) {
            let message = "experts that return their input have a capacity, but identities need experts without one";
            return Err(value_error(message, "set capacity_factor to None"));
        }
        Ok(())
    }

    /// Checks that the output of delayed experts has a next layer, and that no field is set that would ignore it or that it would
    /// ignore.
    fn check_delayed_experts(&self) -> Result<()> {
        let Some(experts) = self.experts.as_ref().filter(|experts| experts.delayed) else { return Ok(()) };
        let others = [
            ("experts.shared_hidden", experts.shared_hidden.is_some()),
            ("experts.beside_mlp", experts.beside_mlp),
            ("parallel", self.parallel),
            ("sum_norms", self.sum_norms),
            ("residual_factors", !self.residual_factors.is_empty()),
            ("streams", self.streams.is_some()),
            ("layer_embedding", self.layer_embedding.is_some()),
            ("parts", !self.parts.is_empty()),
        ];
        if let Some((name, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
            return Err(value_error(
                format!("experts.delayed is true, and {name} is set, which layers with delayed experts do not support"),
                format!("set experts.delayed to false, or do not set {name}"),
            ));
        }
        let delays: Vec<bool> = (0..self.layers).map(|layer| self.delays_experts(layer)).collect();
        if delays.last() == Some(&true) || delays.windows(2).any(|pair| pair == [true, true]) {
            let message = "the output of delayed experts has no next layer, or the next layer has delayed experts too";
            return Err(value_error(
                message,
                "set dense_layers to true for the last layer, and after each layer with experts",
            ));
        }
        Ok(())
    }

    /// Checks the layers that replace attention. A product of sizes that overflows could not be allocated either.
    fn check_convolution_and_linear_attention(&self) -> Result<()> {
        if self.conv.as_ref().is_some_and(|conv| conv.width == 0) {
            return Err(value_error("the width of a convolution is 0", "set the width to at least 1"));
        }
        // The keys of each head of keys are used by an equal number of heads of values.
        if let Some(delta) = &self.delta {
            let DeltaConfig { key_heads, value_heads, key_dim, value_dim, width, rank, layers, .. } = delta;
            let sizes = [*key_heads, *value_heads, *key_dim, *value_dim, *width, rank.unwrap_or(1)];
            let fits = !sizes.contains(&0) && value_heads.is_multiple_of(*key_heads) && layers.len() == self.layers;
            if let Some(bound) = delta.rate_bound.filter(|bound| !(bound.is_finite() && *bound < 0.0)) {
                return Err(value_error(
                    format!("delta.rate_bound must be a finite number below 0, got {bound}"),
                    "set it to a negative number, for example -5.0, or to None",
                ));
            }
            if !fits || product(&[*value_heads, *key_dim, *value_dim, 8]).is_none() {
                let message = format!("{delta:?} does not describe linear attention for {} layers", self.layers);
                return Err(value_error(
                    message,
                    "use positive sizes, key_heads that divide value_heads, and one entry of `layers` for each layer",
                ));
            }
        }
        if let Some(space) = &self.state_space {
            let StateSpaceConfig { heads, head_dim, groups, state_dim, width, .. } = space;
            let sizes = [*heads, *head_dim, *groups, *state_dim, *width];
            let is_positive = !sizes.contains(&0);
            let steps_fit = space.min_step >= 0.0 && space.min_step <= space.max_step;
            if !is_positive || !heads.is_multiple_of(*groups) || !steps_fit || product(&sizes).is_none() {
                let message = format!("{space:?} does not describe a state space");
                return Err(value_error(
                    message,
                    "use positive sizes, groups that divide heads, and 0 <= min_step <= max_step",
                ));
            }
        }
        if let Some(RgLruConfig { channels, width, .. }) = self.rg_lru
            && (width == 0 || channels == 0 || !channels.is_multiple_of(self.heads))
        {
            return Err(value_error(
                format!("{channels} channels with convolutions of {width} positions do not describe recurrent units"),
                format!("use positive sizes, and channels that {} heads divide", self.heads),
            ));
        }
        if let Some(space) = &self.selective {
            let sizes = [space.channels, space.state_dim, space.width, space.rank];
            if sizes.contains(&0) || product(&sizes).is_none() {
                return Err(value_error(
                    format!("{space:?} does not describe a state space"),
                    "set all sizes to positive numbers",
                ));
            }
        }
        Ok(())
    }

    fn check_windows(&self) -> Result<()> {
        if self.chunk == Some(0) {
            return Err(value_error("a chunk has 0 positions", "set the chunk to at least 1 position, or to None"));
        }
        if self.windows.contains(&Some(0)) {
            return Err(value_error("a window has 0 positions", "set the window to at least 1 position, or to None"));
        }
        Ok(())
    }

    fn check_norms(&self) -> Result<()> {
        // The body of a loop is traced once, so all layers must have the same structure.
        if self.scan_layers && !self.is_uniform() {
            let message = "scan_layers needs layers of one structure, and their windows, positions or experts differ";
            return Err(value_error(message, "set scan_layers to false, or make all layers equal"));
        }
        if !self.residual_factors.is_empty()
            && (self.sum_norms || self.post_norms || !self.pre_norms || !self.norm_places.is_empty() || self.parallel)
        {
            let message =
                "residual_factors are of normalized inputs, and sum_norms, post_norms, norm_places or parallel is set";
            return Err(value_error(message, "set pre_norms to true and the other fields to false"));
        }
        let has_other_sums =
            self.sum_norms || self.parallel || !self.residual_factors.is_empty() || self.streams.is_some();
        if self.sums != ResidualSums::Plain && (has_other_sums || !self.parts.is_empty()) {
            let message = format!(
                "sums is ResidualSums::{:?}, and sum_norms, parallel, residual_factors, streams or parts is set too",
                self.sums
            );
            return Err(value_error(message, "set sums to ResidualSums::Plain, or do not set the other fields"));
        }
        if self.norm_gates.is_some_and(|rank| rank == 0 || self.norm != NormKind::Rms) {
            let message = format!("norm_gates is {:?}, and norm is NormKind::{:?}", self.norm_gates, self.norm);
            return Err(value_error(message, "use at least 1 feature, and NormKind::Rms"));
        }
        if self.norm_gates.is_some() && (0..self.layers).any(|layer| !self.normalizes(layer).0) {
            let message = "norm_gates are factors of normalized inputs, and some layers do not normalize their inputs";
            return Err(value_error(
                message,
                "set pre_norms to true and norm_places to an empty list, or norm_gates to None",
            ));
        }
        if self.sum_norms && (self.pre_norms || self.post_norms || !self.norm_places.is_empty() || self.parallel) {
            let message = "sum_norms normalizes the sums of a layer, and pre_norms, post_norms, norm_places or parallel is set too";
            return Err(value_error(message, "set the other fields to false"));
        }
        if self.inner_norms && !matches!(self.norm, NormKind::Rms) {
            let message = format!("inner_norms are RMS norms, and norm is NormKind::{:?}", self.norm);
            return Err(value_error(message, "set norm to NormKind::Rms, or inner_norms to false"));
        }
        if self.qk_norm != QkNorm::None && self.norm == NormKind::LayerOffset {
            let message = "norms of queries and keys have no offset, and norm is NormKind::LayerOffset";
            return Err(value_error(message, "set qk_norm to QkNorm::None, or choose another kind of norm"));
        }
        if self.qk_norm == QkNorm::EachHead && !matches!(self.norm, NormKind::Layer | NormKind::LayerScale) {
            return Err(value_error(
                format!("QkNorm::EachHead is a layer norm with scales, and norm is NormKind::{:?}", self.norm),
                "set norm to NormKind::Layer or NormKind::LayerScale, or qk_norm to QkNorm::Head",
            ));
        }
        if self.qk_norm == QkNorm::AllHeads && !matches!(self.norm, NormKind::Rms | NormKind::RmsOffset) {
            return Err(value_error(
                format!("QkNorm::AllHeads is an RMS norm, and norm is NormKind::{:?}", self.norm),
                "set norm to NormKind::Rms, or qk_norm to QkNorm::Head",
            ));
        }
        Ok(())
    }

    /// Rotary positions turn pairs of features.
    fn check_rotary_features(&self) -> Result<()> {
        if self.head_dim % 2 == 1 && matches!(&self.positions, Positions::Rotary(Rope { rotary_dim: None, .. })) {
            let message = format!("rotary positions need an even head_dim, got {}", self.head_dim);
            return Err(value_error(message, "choose features and heads that give an even head_dim"));
        }
        Ok(())
    }

    /// The layers that see the positions that the layer before them sees.
    fn shared_positions(&self) -> &[bool] {
        let sparse = self.latent.as_ref().and_then(|latent| latent.sparse.as_ref());
        sparse.map_or(&[][..], |sparse| &sparse.shared)
    }

    /// True if all layers have one structure.
    fn is_uniform(&self) -> bool {
        fn equal<T: PartialEq>(entries: &[T]) -> bool {
            entries.windows(2).all(|pair| pair[0] == pair[1])
        }
        let dense = self.experts.as_ref().map_or(&[][..], |experts| &experts.dense_layers);
        let convs = self.conv.as_ref().map_or(&[][..], |conv| &conv.layers);
        let deltas = self.delta.as_ref().map_or(&[][..], |delta| &delta.layers);
        // A list that has an entry for each layer must have equal entries; a list without entries sets nothing.
        self.first_norm
            && equal(&self.windows)
            && equal(&self.without_rope)
            && equal(&self.without_sinks)
            && equal(&self.without_out_bias)
            && equal(&self.attention_scales)
            && equal(&self.norm_places)
            && equal(self.shared_positions())
            && equal(dense)
            && equal(convs)
            && equal(deltas)
            && equal(self.state_space.as_ref().map_or(&[][..], |space| &space.layers))
            && equal(self.selective.as_ref().map_or(&[][..], |space| &space.layers))
            && equal(self.rg_lru.as_ref().map_or(&[][..], |about| &about.layers))
            // Each layer has other rates.
            && self.lightning.is_none()
            && equal(&self.residual_factors)
            && self.sums != ResidualSums::ByDepth
            // Each layer has another factor.
            && !self.differential
            && equal(&self.parts)
            && equal(&self.layer_heads)
            && equal(&self.layer_hidden)
            && equal(&self.values_from_keys)
            && equal(&self.gate_sparsity)
            && equal(&self.mlp_bounds)
            && equal(self.experts.as_ref().map_or(&[][..], |experts| &experts.bounds))
            && self.key_layers.iter().all(Option::is_none)
            && self.layer_embedding.is_none()
    }

    /// The largest matrices, for bounds.
    pub(crate) fn extents(&self) -> Vec<(&'static str, usize, usize)> {
        let latent = self.latent.as_ref().map_or(0, |latent| {
            let depth = latent.key_dim.saturating_add(latent.rope_dim).saturating_add(latent.value_dim);
            let indexed = latent.sparse.as_ref().map_or(0, |sparse| sparse.heads.saturating_mul(sparse.depth));
            self.heads.saturating_mul(depth).max(indexed).max(latent.rank).max(latent.query_rank.unwrap_or(0))
        });
        // With latent attention there are no matrices from features to heads.
        let head_dim = if self.latent.is_some() { 0 } else { self.head_dim };
        let experts = self.experts.as_ref().map_or(0, |experts| experts.count.saturating_mul(experts.hidden));
        let learned = match self.positions {
            Positions::Learned(length) => length,
            Positions::Rotary(_) | Positions::Sines | Positions::Alibi(_) | Positions::RoundedAlibi(_) => 0,
        };
        vec![
            ("token table", self.vocab_size, self.embedding_features.unwrap_or(self.features)),
            ("position table", learned, self.features),
            ("query kernel", self.features, self.heads.saturating_mul(head_dim)),
            ("key kernel", self.features, self.kv_heads.saturating_mul(head_dim)),
            (
                "value kernel",
                self.features,
                self.layer_heads
                    .iter()
                    .map(|sizes| sizes.kv_heads)
                    .fold(self.kv_heads, usize::max)
                    .saturating_mul(self.value_dim.unwrap_or(0)),
            ),
            (
                "kernel of shared layers",
                self.features.saturating_mul(2),
                self.shared.as_ref().map_or(0, |shared| self.heads.saturating_mul(self.head_dim).max(shared.rank)),
            ),
            ("projection of tokens", self.features, self.embedding_features.unwrap_or(0)),
            ("MLP kernel", self.features, self.layer_hidden.iter().copied().max().unwrap_or(self.hidden)),
            (
                "token table of layers",
                self.layer_embedding.as_ref().map_or(0, |about| about.vocab_size),
                self.layer_embedding.as_ref().map_or(0, |about| about.features.saturating_mul(self.layers)),
            ),
            (
                "query kernel of a layer",
                self.features,
                self.layer_heads.iter().map(|sizes| sizes.heads.saturating_mul(sizes.head_dim)).max().unwrap_or(0),
            ),
            ("kernel of experts", self.features, experts),
            (
                "kernel of the router",
                self.features,
                self.experts.as_ref().map_or(0, |experts| experts.count.saturating_add(experts.identities)),
            ),
            (
                "projection of streams",
                self.features,
                self.streams
                    .as_ref()
                    .map_or(0, |streams| streams.count.saturating_sub(1).saturating_mul(self.features)),
            ),
            ("kernel of latents", 1, latent),
            (
                "kernel of linear attention",
                self.features,
                self.delta.as_ref().map_or(0, |delta| {
                    let values = delta.value_heads.saturating_mul(delta.value_dim.max(delta.key_dim));
                    values.max(delta.rank.unwrap_or(0))
                }),
            ),
            (
                "kernel of state spaces",
                self.features,
                self.state_space.as_ref().map_or(0, |space| {
                    let keys = space.groups.saturating_mul(space.state_dim).saturating_mul(2);
                    space.heads.saturating_mul(space.head_dim).max(keys)
                }),
            ),
            ("kernel of recurrent units", self.features, self.rg_lru.as_ref().map_or(0, |about| about.channels)),
            (
                "gates of recurrent units",
                self.rg_lru.as_ref().map_or(0, |about| about.channels),
                self.rg_lru.as_ref().map_or(0, |about| (about.channels / self.heads.max(1)).max(about.width)),
            ),
            ("kernel of channels", self.features, self.selective.as_ref().map_or(0, |space| space.channels)),
            (
                "rates of channels",
                self.selective.as_ref().map_or(0, |space| space.channels),
                self.selective.as_ref().map_or(0, |space| space.state_dim.max(space.rank)),
            ),
            (
                "kernel of convolutions",
                self.features,
                self.conv.as_ref().map_or(0, |conv| conv.width.max(self.features)),
            ),
        ]
    }
}

/// The product of sizes, unless it overflows.
fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |n, size| n.checked_mul(*size)).filter(|n| isize::try_from(*n).is_ok())
}
