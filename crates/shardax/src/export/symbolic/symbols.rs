//! The symbols of a function: the specs and constraints that name them, the sizes that the function is traced for, and
//! the values in a call.

use super::size::Size;
use crate::core::tree::Flat;
use crate::error::{Error, Result, err};

/// The largest size of a symbol without constraints.
const DEFAULT_MAX_SIZE: usize = 1 << 16;

/// The maximum number of symbols. The number of programs to trace grows with its square.
const MAX_SYMBOLS: usize = 4;

/// The names of symbols, and their smallest and largest sizes.
#[derive(Clone, Debug, Default)]
pub(in crate::export) struct Symbols {
    pub names: Vec<String>,
    pub bounds: Vec<(usize, usize)>,
}

/// The smallest size for which programs are compared. Programs for 1 have no broadcasts, so they are not compared.
fn first(low: usize) -> usize {
    low.max(2)
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && text != "_"
}

/// The number of the argument that a key path such as `[1].weights` begins with.
fn argument_number(path: &str) -> Option<usize> {
    path.strip_prefix('[')?.split_once(']')?.0.parse().ok()
}

fn invalid_spec(spec: &str, path: &str, shape: &[usize], why: &str) -> Error {
    err!(Value, "the spec {spec:?} of argument{path}, of shape {shape:?}, {why}").help(
        "write sizes between commas: numbers, symbols, sums and products of both, `_` for the argument's own and at last `...` for all others",
    )
}

/// The point with 1 for these symbols.
fn with_ones(point: &[usize], symbols: &[usize]) -> Vec<usize> {
    let mut point = point.to_vec();
    symbols.iter().for_each(|&number| point[number] = 1);
    point
}

/// Some sizes of a symbol above the grid, up to its largest.
fn sizes_between(low: usize, high: usize) -> Vec<usize> {
    let low = first(low) + 3;
    let candidates = [low, low + 7, 12, 64, 129, high - 1].into_iter();
    let mut sizes: Vec<usize> = candidates.filter(|size| (low..high).contains(size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.push(high);
    sizes
}

impl Symbols {
    /// Returns the symbols of these specs, one for each argument, and their bounds.
    pub fn of(specs: &[String], constraints: &[String]) -> Result<Symbols> {
        let mut symbols = Symbols::default();
        let words = specs.iter().flat_map(|spec| spec.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        for name in words.filter(|word| is_name(word)) {
            if !symbols.names.iter().any(|known| known == name) {
                symbols.names.push(name.to_owned());
                symbols.bounds.push((1, DEFAULT_MAX_SIZE));
            }
        }
        if symbols.names.len() > MAX_SYMBOLS {
            return Err(err!(Value, "the specs have the {} symbols {}", symbols.names.len(), symbols.names.join(", "))
                .help(format!("name at most {MAX_SYMBOLS} symbols, and write numbers for the other sizes")));
        }
        constraints.iter().try_for_each(|constraint| symbols.bound(constraint))?;
        for (name, (low, high)) in symbols.names.iter().zip(&symbols.bounds) {
            // Three sizes determine the program, and one more is compared with it.
            if first(*low) + 3 > *high {
                return Err(err!(Value, "the constraints leave the sizes {low} to {high} of {name}")
                    .help("write a number for a size that is nearly known, or export one program for each size"));
            }
        }
        Ok(symbols)
    }

    /// Narrows the bounds by `b >= 2` or `b <= 64`.
    fn bound(&mut self, constraint: &str) -> Result<()> {
        let op = if constraint.contains(">=") { ">=" } else { "<=" };
        let parsed = constraint.split_once(op).and_then(|(name, bound)| {
            let number = self.names.iter().position(|known| known == name.trim())?;
            let bound = bound.trim().parse::<usize>().ok().filter(|&bound| bound <= isize::MAX as usize)?;
            Some((number, bound))
        });
        let (number, bound) = parsed.ok_or_else(|| {
            err!(Value, "{constraint:?} is not a constraint of a symbol of {}", self.names.join(", ")).help(
                "write a symbol and its bound, as in \"b >= 2\" or \"b <= 64\"; a size that eight divides is \"8*b\"",
            )
        })?;
        let (low, high) = self.bounds[number];
        self.bounds[number] = match op {
            ">=" => (bound.max(1), if high == DEFAULT_MAX_SIZE { high.max(bound.saturating_mul(2)) } else { high }),
            _ => (low, bound),
        };
        Ok(())
    }

    /// Returns the sizes of an argument's leaf with this shape: `_` is the leaf's size, and `...` stands for its
    /// remaining sizes.
    pub fn sizes(&self, spec: &str, path: &str, shape: &[usize]) -> Result<Vec<Size>> {
        let text = spec.trim();
        let text = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text).trim();
        let mut parts: Vec<&str> = text.split(',').map(str::trim).collect();
        if parts.last() == Some(&"") {
            parts.pop();
        }
        let open = parts.last() == Some(&"...");
        if open {
            parts.pop();
        }
        if if open { parts.len() > shape.len() } else { parts.len() != shape.len() } {
            return Err(invalid_spec(spec, path, shape, &format!("has {} sizes", parts.len())));
        }
        // `_` and the sizes that `...` stands for are the leaf's.
        let texts = shape.iter().enumerate().map(|(dim, size)| match parts.get(dim) {
            Some(part) if *part != "_" => (*part).to_owned(),
            _ => size.to_string(),
        });
        let sizes = texts.map(|text| {
            Size::parse(&text, &self.names)
                .ok_or_else(|| invalid_spec(spec, path, shape, &format!("has the size {text:?}")))
        });
        let sizes = sizes.collect::<Result<Vec<_>>>()?;
        // A number in the spec must be the size of the leaf.
        match sizes.iter().zip(shape).find(|(size, have)| size.known().is_some_and(|known| known != **have)) {
            Some((size, have)) => {
                let why = format!("has the size {} for {have}", size.text(&self.names));
                Err(invalid_spec(spec, path, shape, &why))
            }
            None => Ok(sizes),
        }
    }

    /// Returns the sizes of all leaves of these arguments.
    pub fn argument_sizes(&self, specs: &[String], arguments: &Flat) -> Result<Vec<Vec<Size>>> {
        let paths = arguments.def.paths();
        let count = paths.iter().filter_map(|path| argument_number(path)).max().map_or(0, |last| last + 1);
        if specs.len() != count {
            return Err(err!(Value, "there are {} specs of sizes for {count} arguments", specs.len())
                .help("write one spec for each argument; \"...\" leaves the sizes as they are"));
        }
        let sizes = paths.iter().zip(&*arguments.leaves).map(|(path, leaf)| {
            self.sizes(argument_number(path).map_or("...", |number| &specs[number]), path, leaf.shape())
        });
        sizes.collect()
    }

    /// Parses the expressions in a file for the sizes of an argument.
    pub fn read(&self, sizes: &[String]) -> Result<Vec<Size>> {
        let sizes = sizes
            .iter()
            .map(|text| Size::parse(text, &self.names).ok_or_else(|| err!(Value, "{text:?} is not a size")));
        sizes.collect()
    }

    /// Returns the corner of the grid from which expressions are found.
    pub fn corner(&self) -> Vec<usize> {
        self.bounds.iter().map(|(low, _)| first(*low)).collect()
    }

    /// Returns the points at which symbols are 1: all symbols at once, and each alone.
    pub fn ones(&self) -> Vec<Vec<usize>> {
        let corner = self.corner();
        let can_be_one: Vec<usize> = (0..corner.len()).filter(|&number| self.bounds[number].0 == 1).collect();
        if can_be_one.len() <= 1 {
            return can_be_one.iter().map(|&number| with_ones(&corner, &[number])).collect();
        }
        let single = can_be_one.iter().map(|&number| with_ones(&corner, &[number]));
        [with_ones(&corner, &can_be_one)].into_iter().chain(single).collect()
    }

    /// Other sizes for which the programs are compared: both bounds, and some between them, with different factors and
    /// on either side of powers of two.
    pub fn others(&self) -> Vec<Vec<usize>> {
        let per_symbol: Vec<Vec<usize>> = self.bounds.iter().map(|&(low, high)| sizes_between(low, high)).collect();
        let count = per_symbol.iter().map(Vec::len).max().unwrap_or(0);
        // Other combinations of several symbols, and all symbols at their bounds.
        let mut points: Vec<Vec<usize>> = (0..count)
            .map(|i| {
                per_symbol.iter().enumerate().map(|(number, sizes)| sizes[(i + 2 * number) % sizes.len()]).collect()
            })
            .collect();
        points.push(self.bounds.iter().map(|(_, high)| *high).collect());
        points.dedup();
        points
    }

    /// `b = 3, s = 5`.
    pub fn named(&self, values: &[usize]) -> String {
        self.names.iter().zip(values).map(|(name, size)| format!("{name} = {size}")).collect::<Vec<_>>().join(", ")
    }

    /// Returns the values of the symbols for arguments of these shapes.
    pub fn solved(&self, sizes: &[Vec<Size>], shapes: &[Vec<usize>]) -> Result<Vec<usize>> {
        let mut values: Vec<Option<usize>> = vec![None; self.names.len()];
        // Each size with one unknown symbol determines this symbol, which can make further sizes solvable.
        while values.contains(&None) {
            let mut solution = None;
            for (size, &have) in sizes.iter().flatten().zip(shapes.iter().flatten()) {
                if let Some((number, factor, offset)) = size.linear(&values).filter(|(_, factor, _)| *factor != 0) {
                    let steps = i64::try_from(have).ok().and_then(|have| have.checked_sub(offset)).unwrap_or(-1);
                    let value = (steps % factor == 0).then_some(steps / factor).and_then(|n| usize::try_from(n).ok());
                    solution = Some((number, value.ok_or_else(|| self.unfit(size, have))?));
                    break;
                }
            }
            let Some((number, value)) = solution else {
                let open =
                    self.names.iter().zip(&values).filter(|(_, value)| value.is_none()).map(|(name, _)| name.as_str());
                return Err(err!(
                    Value,
                    "the sizes of the arguments do not determine {}",
                    open.collect::<Vec<_>>().join(" and ")
                )
                .help("let each symbol be a size of its own, such as \"b\" or \"2*b\", of an argument"));
            };
            values[number] = Some(value);
        }
        let values: Vec<usize> = values.into_iter().flatten().collect();
        for (name, (value, (low, high))) in self.names.iter().zip(values.iter().zip(&self.bounds)) {
            if !(low..=high).contains(&value) {
                return Err(err!(Value, "{name} is {value}, but the function was exported for {low} to {high}").help(
                    format!(
                        "export it with the constraint \"{name} {} {value}\"",
                        if value < low { ">=" } else { "<=" }
                    ),
                ));
            }
        }
        let mut sizes_and_values = sizes.iter().flatten().zip(shapes.iter().flatten());
        match sizes_and_values.find(|(size, have)| size.at(&values) != i64::try_from(**have).ok()) {
            Some((size, &have)) => Err(self.unfit(size, have).context(self.named(&values))),
            None => Ok(values),
        }
    }

    fn unfit(&self, size: &Size, have: usize) -> Error {
        err!(Value, "a size of {have} where the function was exported for {}", size.text(&self.names))
            .help("call it with arrays of sizes that fit, or export it for others")
    }
}
