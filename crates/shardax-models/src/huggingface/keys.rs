//! The names and layouts of a model's arrays in files.

use super::{Layout, Weights};

/// Maps the key paths of a model's arrays to names and layouts in files. A `*` in a key path and in its name matches
/// the same number.
///
/// A `#` in a name stands for the index of each entry along the array's first dimension. For example,
/// `experts.#.up_proj.weight` names the separate arrays for the experts of a layer. If a name ends with `[#]`, a single
/// array has all entries, and the layout applies to each entry.
///
/// ```
/// use shardax_models::huggingface::{KeyMap, Layout, Weights, load};
/// use shardax_nn::prelude::*;
/// # let path = std::env::temp_dir().join(format!("shardax-doc-keys-{}", std::process::id()));
/// # let header = br#"{"layer.0.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;
/// # let length = (header.len() as u64).to_le_bytes();
/// # let file = [&length[..], header, &1.0f32.to_le_bytes(), &2.0f32.to_le_bytes()].concat();
/// # std::fs::write(&path, file).expect("a file");
/// let keys = KeyMap::new().array("[*].kernel", "layer.*.weight", Layout::Transposed);
/// let like = vec![Linear::builder(2, 1).use_bias(false).build(&mut Rngs::new(0))];
/// let layers = load(&Weights::open(&path)?, &like, &keys, &Rules::default())?;
/// assert_eq!(layers[0].kernel.to_vec::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyMap {
    rules: Vec<(String, String, Layout)>,
    prefix: String,
    aliases: Vec<(String, String)>,
    prefixes: Vec<(String, String)>,
    ignored: Vec<String>,
    /// Arrays that files may omit, their usual layout if there are several, and the names and layouts of their replacements.
    absent: Vec<(String, Option<Layout>, String, Layout)>,
    /// Names, and the layout that applies if the array has this shape.
    in_shape: Vec<(String, Layout, [usize; 3], Layout)>,
    /// Arrays that replace an array which has another shape in the files: its name and usual shape, and the names of the arrays
    /// and the layout of their rows.
    unless_shape: Vec<(String, Vec<usize>, Vec<String>, Layout)>,
    /// Arrays that replace other arrays if the files have them.
    preferred: Vec<(String, String)>,
    pub(super) tied: Vec<(String, String)>,
}

impl KeyMap {
    /// Creates an empty map.
    pub fn new() -> Self {
        KeyMap::default()
    }

    /// Adds a prefix that all names may have.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// Also accepts `other` in place of `ending` at the end of names.
    pub fn alias(mut self, ending: &str, other: &str) -> Self {
        self.aliases.push((ending.to_owned(), other.to_owned()));
        self
    }

    /// Also accepts `other` in place of `start` at the start of names.
    pub fn prefix_alias(mut self, start: &str, other: &str) -> Self {
        self.prefixes.push((start.to_owned(), other.to_owned()));
        self
    }

    /// Ignores arrays with this name in files. A `**` at the end matches any text.
    pub fn ignore(mut self, name: &str) -> Self {
        self.ignored.push(name.to_owned());
        self
    }

    /// Accepts files with a copy of the array `name` under the name `copy`. Both must be equal.
    pub fn tied(mut self, copy: &str, name: &str) -> Self {
        self.tied.push((copy.to_owned(), name.to_owned()));
        self
    }

    /// Reads the array `other` with this layout if the files do not have the array `name`.
    pub(super) fn absent(mut self, name: &str, other: &str, layout: Layout) -> Self {
        self.absent.push((name.to_owned(), None, other.to_owned(), layout));
        self
    }

    /// Reads the array `other` with this layout if the files do not have the array `name`, for the part in the layout `usual`.
    pub(super) fn absent_part(mut self, (name, usual): (&str, Layout), other: &str, layout: Layout) -> Self {
        self.absent.push((name.to_owned(), Some(usual), other.to_owned(), layout));
        self
    }

    /// Reads the array `other` in place of the array `name` if the files have both.
    pub(super) fn preferred(mut self, name: &str, other: &str) -> Self {
        self.preferred.push((name.to_owned(), other.to_owned()));
        self
    }

    /// Reads the array with this name in another layout if the files have it in this shape.
    pub(super) fn in_shape(mut self, name: &str, layout: Layout, shape: [usize; 3], other: Layout) -> Self {
        self.in_shape.push((name.to_owned(), layout, shape, other));
        self
    }

    /// Reads the array with this name from several arrays, whose rows are joined, if the files have it in another shape.
    pub(super) fn unless_shape(mut self, name: &str, shape: &[usize], others: &[String], layout: Layout) -> Self {
        self.unless_shape.push((name.to_owned(), shape.to_vec(), others.to_vec(), layout));
        self
    }

    /// Returns the names of the arrays that replace the array `name` if it has another shape, joined by `+`, and their layout.
    fn replaced(&self, weights: &Weights, name: &str, found: &str) -> Option<(String, Layout)> {
        self.unless_shape.iter().find_map(|(pattern, usual, others, layout)| {
            let number = matched(pattern, name).filter(|_| weights.shape(found) != Some(usual))?;
            let others = others.iter().map(|other| self.in_files(weights, &other.replacen('*', number, 1)));
            Some((others.collect::<Option<Vec<_>>>()?.join("+"), *layout))
        })
    }

    /// Returns the name and the layout in these files for the array with this name. Several names are joined by `+`.
    pub(super) fn located(&self, weights: &Weights, name: &str, layout: Layout) -> Option<(String, Layout)> {
        let preferred = self.preferred.iter().filter(|(replaced, _)| replaced == name);
        let preferred = preferred.into_iter().find_map(|(_, other)| self.in_files(weights, other));
        if let Some(found) = preferred.or_else(|| self.in_files(weights, name)) {
            if let Some(replaced) = self.replaced(weights, name, &found) {
                return Some(replaced);
            }
            let shape = weights.shape(found.trim_end_matches("[#]"));
            let other = self.in_shape.iter().find(|(pattern, usual, other_shape, _)| {
                *usual == layout && shape == Some(&other_shape[..]) && matched(pattern, name).is_some()
            });
            return Some((found, other.map_or(layout, |(.., other)| *other)));
        }
        let absent = self.absent.iter().filter(|(_, usual, ..)| usual.is_none_or(|usual| usual == layout));
        absent.into_iter().find_map(|(absent, _, other, layout)| {
            let other = other.replacen('*', matched(absent, name)?, 1);
            Some((self.in_files(weights, &other)?, *layout))
        })
    }

    /// Reads the copy of an array if the files do not have the array itself.
    pub(super) fn with_either_copy(mut self) -> Self {
        let copies = self.tied.iter().map(|(copy, name)| (name.clone(), None, copy.clone(), Layout::Same));
        self.absent.extend(copies);
        self
    }

    /// Ignores all copies of arrays, and also this array.
    pub(super) fn without_copies(mut self, name: &str) -> Self {
        self.tied.clear();
        self.ignore(name)
    }

    /// Merges two maps. Entries of the first map take precedence.
    pub fn and(mut self, other: KeyMap) -> Self {
        self.rules.extend(other.rules);
        self.aliases.extend(other.aliases);
        self.prefixes.extend(other.prefixes);
        self.ignored.extend(other.ignored);
        self.absent.extend(other.absent);
        self.preferred.extend(other.preferred);
        self.in_shape.extend(other.in_shape);
        self.unless_shape.extend(other.unless_shape);
        self.tied.extend(other.tied);
        self
    }

    /// Replaces the start of the names of arrays and of copies.
    pub(crate) fn renamed(mut self, start: &str, other: &str) -> Self {
        let rename = |name: &mut String| {
            if let Some(rest) = name.strip_prefix(start) {
                *name = format!("{other}{rest}");
            }
        };
        self.rules.iter_mut().for_each(|(_, name, _)| rename(name));
        self.tied.iter_mut().for_each(|(copy, name)| [copy, name].into_iter().for_each(rename));
        self
    }

    /// Sets the numbers that the model's blocks have in files: pairs of the index of a block and its number.
    pub(super) fn with_layers(mut self, numbers: impl Iterator<Item = (usize, usize)> + Clone) -> Self {
        let rules = std::mem::take(&mut self.rules);
        for (path, name, layout) in rules {
            match path.strip_prefix("blocks[*]") {
                Some(rest) => self.rules.extend(numbers.clone().map(|(index, number)| {
                    (format!("blocks[{index}]{rest}"), name.replacen('*', &number.to_string(), 1), layout)
                })),
                None => self.rules.push((path, name, layout)),
            }
        }
        self
    }

    /// Returns the map of a model that contains this model at a key path. The names have a prefix.
    pub(crate) fn inside(self, path: &str, prefix: &str) -> Self {
        let rules = self.rules.into_iter();
        let rules = rules.map(|(key, name, layout)| (format!("{path}{key}"), format!("{prefix}{name}"), layout));
        let ignored = self.ignored.iter().map(|name| format!("{prefix}{name}"));
        KeyMap { rules: rules.collect(), ignored: ignored.collect(), ..KeyMap::default() }
    }

    /// Sets the name of the array at this key path.
    pub fn array(mut self, path: impl Into<String>, name: impl Into<String>, layout: Layout) -> Self {
        self.rules.push((path.into(), name.into(), layout));
        self
    }

    /// Sets the names of the kernel and the bias of a `Linear` layer of PyTorch.
    pub fn linear(self, path: &str, name: &str) -> Self {
        self.weights(path, name, Layout::Transposed)
    }

    /// Sets the names of the kernel and the bias of a convolution.
    pub fn conv(self, path: &str, name: &str) -> Self {
        self.weights(path, name, Layout::Convolution)
    }

    /// Sets the names of a bias and of a kernel with this layout.
    pub fn weights(self, path: &str, name: &str, layout: Layout) -> Self {
        let bias = match layout {
            Layout::Part { .. } | Layout::Rows { .. } | Layout::GroupedRows { .. } => layout,
            _ => Layout::Same,
        };
        self.array(format!("{path}.kernel"), format!("{name}.weight"), layout).array(
            format!("{path}.bias"),
            format!("{name}.bias"),
            bias,
        )
    }

    /// Sets the names of a norm's scale and bias.
    pub fn norm(self, path: &str, name: &str) -> Self {
        self.scale(path, name).array(format!("{path}.bias"), format!("{name}.bias"), Layout::Same)
    }

    /// Sets the name of the scale of a norm without a bias.
    pub fn scale(self, path: &str, name: &str) -> Self {
        self.array(format!("{path}.scale"), format!("{name}.weight"), Layout::Same)
    }

    /// Returns the name and the layout of the array at this key path.
    pub(super) fn find(&self, path: &str) -> Option<(String, Layout)> {
        self.rules.iter().find_map(|(pattern, name, layout)| {
            let number = matched(pattern, path)?;
            Some((name.replacen('*', number, 1), *layout))
        })
    }

    /// Returns the key path for the array with this name, which has no prefix.
    pub(super) fn path_of(&self, name: &str) -> Option<(String, Layout)> {
        self.rules.iter().find_map(|(path, pattern, layout)| {
            let number = matched(pattern, name)?;
            Some((path.replacen('*', number, 1), *layout))
        })
    }

    /// Returns the key paths of all arrays that are parts of the array with this name, which can have the prefix.
    pub(super) fn paths_of(&self, name: &str) -> Vec<(String, Layout)> {
        let bare = name.strip_prefix(self.prefix.as_str()).unwrap_or(name);
        let paths = self.rules.iter().filter_map(|(path, pattern, layout)| {
            let number = matched(pattern, name).or_else(|| matched(pattern, bare))?;
            let path = path.replacen('*', number, 1);
            // An earlier rule can give the path another name.
            let is_used = self.find(&path).is_some_and(|(name, _)| name == pattern.replacen('*', number, 1));
            is_used.then_some((path, *layout))
        });
        paths.collect()
    }

    /// Returns the key path for the array with this name. Also returns the index of the entry if each entry of the
    /// first dimension is a separate array in the files.
    pub(super) fn path_of_entry(&self, name: &str) -> Option<(String, Layout, Option<usize>)> {
        let bare = name.strip_prefix(self.prefix.as_str()).unwrap_or(name);
        if let Some((path, layout)) = self.path_of(name).or_else(|| self.path_of(bare)) {
            return Some((path, layout, None));
        }
        self.rules.iter().find_map(|(path, pattern, layout)| {
            let (before, after) = pattern.split_once('#')?;
            let start = name.strip_suffix(after)?;
            let digits = start.len() - start.trim_end_matches(|c: char| c.is_ascii_digit()).len();
            let (start, entry) = start.split_at(start.len() - digits);
            let number = matched(before, start)?;
            Some((path.replacen('*', number, 1), *layout, Some(entry.parse().ok()?)))
        })
    }

    /// Returns the name that these files use for the array.
    pub(super) fn in_files(&self, weights: &Weights, name: &str) -> Option<String> {
        // Arrays whose rows are joined.
        if name.contains('+') {
            let parts = name.split('+').map(|part| self.in_files(weights, part));
            return Some(parts.collect::<Option<Vec<_>>>()?.join("+"));
        }
        let aliases = self
            .aliases
            .iter()
            .filter_map(|(ending, other)| Some(format!("{}{other}", name.strip_suffix(ending.as_str())?)));
        let prefixes = self
            .prefixes
            .iter()
            .filter_map(|(start, other)| Some(format!("{other}{}", name.strip_prefix(start.as_str())?)));
        let names = std::iter::once(name.to_owned()).chain(aliases).chain(prefixes);
        names.flat_map(|name| [format!("{}{name}", self.prefix), name]).find(|name| {
            let first_name = name.trim_end_matches("[#]").replace('#', "0");
            weights.contains(&first_name)
        })
    }

    /// Returns the name that `transformers` writes.
    pub(super) fn written(&self, name: &str) -> String {
        // The last layer is not a part of the submodel that the prefix names.
        if name.starts_with("lm_head.") || name.starts_with("embed_out.") {
            name.to_owned()
        } else {
            format!("{}{name}", self.prefix)
        }
    }

    /// Returns `true` if models do not need the array with this name.
    pub(super) fn ignores(&self, name: &str) -> bool {
        let bare = name.strip_prefix(self.prefix.as_str()).unwrap_or(name);
        self.ignored.iter().any(|pattern| match pattern.strip_suffix("**") {
            Some(start) => bare.starts_with(start) || name.starts_with(start),
            None => matched(pattern, bare).is_some(),
        })
    }
}

/// Returns the number that `*` matches in `pattern`, or the empty text if the pattern has no `*`. Returns `None` if
/// `text` does not match.
fn matched<'a>(pattern: &str, text: &'a str) -> Option<&'a str> {
    let Some((before, after)) = pattern.split_once('*') else { return (pattern == text).then_some("") };
    let number = text.strip_prefix(before)?.strip_suffix(after)?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(number)
}
