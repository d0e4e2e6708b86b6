//! Sizes as expressions of symbols: `b`, `2*b + 1`, `b*s`.

use std::collections::BTreeMap;

/// A polynomial of numbered symbols: the coefficient of each product of symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::export) struct Size(BTreeMap<Vec<usize>, i64>);

impl Size {
    fn constant(value: i64) -> Size {
        Size(BTreeMap::from([(Vec::new(), value)])).reduced()
    }

    fn symbol(number: usize) -> Size {
        Size(BTreeMap::from([(vec![number], 1)]))
    }

    fn reduced(mut self) -> Size {
        self.0.retain(|_, coefficient| *coefficient != 0);
        self
    }

    fn plus(mut self, other: Size) -> Option<Size> {
        for (product, coefficient) in other.0 {
            let sum = self.0.entry(product).or_default();
            *sum = sum.checked_add(coefficient)?;
        }
        Some(self.reduced())
    }

    fn times(&self, other: &Size) -> Option<Size> {
        let mut product_sum = Size::default();
        for (a, x) in &self.0 {
            for (b, y) in &other.0 {
                let mut product = [a.as_slice(), b].concat();
                product.sort_unstable();
                product_sum = product_sum.plus(Size(BTreeMap::from([(product, x.checked_mul(*y)?)])))?;
            }
        }
        Some(product_sum)
    }

    /// Reads sums of products: `2*b - 1`. Symbols are from `names`; `None` if the text is not such an expression.
    pub fn parse(text: &str, names: &[String]) -> Option<Size> {
        let (mut all, mut rest) = (Size::default(), text.trim());
        let mut sign = 1;
        if let Some(behind) = rest.strip_prefix('-') {
            (sign, rest) = (-1, behind);
        }
        loop {
            let end = rest.find(['+', '-']).unwrap_or(rest.len());
            let mut term = Size::constant(sign);
            for factor in rest[..end].split('*').map(str::trim) {
                let factor = match names.iter().position(|name| name == factor) {
                    Some(number) => Size::symbol(number),
                    None if factor.bytes().all(|byte| byte.is_ascii_digit()) => Size::constant(factor.parse().ok()?),
                    None => return None,
                };
                term = term.times(&factor)?;
            }
            all = all.plus(term)?;
            match rest.get(end..end + 1) {
                Some(op) => sign = if op == "-" { -1 } else { 1 },
                None => return Some(all),
            }
            rest = &rest[end + 1..];
        }
    }

    /// Returns the text that [`parse`](Size::parse) reads.
    pub fn text(&self, names: &[String]) -> String {
        let mut text = String::new();
        for (product, coefficient) in self.0.iter().rev() {
            text.push_str(match (text.is_empty(), *coefficient < 0) {
                (true, false) => "",
                (true, true) => "-",
                (false, false) => " + ",
                (false, true) => " - ",
            });
            let factors = product.iter().map(|&number| names[number].clone());
            let shown = (coefficient.unsigned_abs() != 1 || product.is_empty()).then_some(coefficient.unsigned_abs());
            text.push_str(&shown.map(|n| n.to_string()).into_iter().chain(factors).collect::<Vec<_>>().join("*"));
        }
        if text.is_empty() { "0".to_owned() } else { text }
    }

    /// Returns the value for these values of the symbols; `None` if it exceeds 64 bits.
    pub fn at(&self, values: &[usize]) -> Option<i64> {
        self.0.iter().try_fold(0i64, |all, (product, coefficient)| {
            let factors = product.iter().map(|&number| values.get(number).and_then(|&n| i64::try_from(n).ok()));
            let term = factors.into_iter().try_fold(*coefficient, |all, factor| all.checked_mul(factor?))?;
            all.checked_add(term)
        })
    }

    /// Returns the size, if it is a number without symbols that fits.
    pub fn known(&self) -> Option<usize> {
        self.at(&[]).and_then(|size| usize::try_from(size).ok())
    }

    /// Returns the smallest and the largest sum of the terms for symbols between these bounds; `None` if it exceeds 64
    /// bits.
    pub fn bounds(&self, bounds: &[(usize, usize)]) -> Option<(i64, i64)> {
        self.0.iter().try_fold((0i64, 0i64), |(low, high), (product, &coefficient)| {
            let at_low = product.iter().try_fold(coefficient, |all, &i| times_size(all, bounds.get(i)?.0))?;
            let at_high = product.iter().try_fold(coefficient, |all, &i| times_size(all, bounds.get(i)?.1))?;
            // A negative coefficient swaps the ends.
            Some((low.checked_add(at_low.min(at_high))?, high.checked_add(at_low.max(at_high))?))
        })
    }

    /// `a` and `c` of `a*x + c`, if all symbols but one, `x`, have values.
    pub fn linear(&self, values: &[Option<usize>]) -> Option<(usize, i64, i64)> {
        let mut unknown = None;
        for &number in self.0.keys().flatten().filter(|&&number| values.get(number) == Some(&None)) {
            if unknown.replace(number).is_some_and(|other| other != number) {
                return None;
            }
        }
        let unknown = unknown?;
        if self.0.keys().any(|product| product.iter().filter(|&&number| number == unknown).count() > 1) {
            return None;
        }
        let offset = self.at(&filled(values, 0))?;
        Some((unknown, self.at(&filled(values, 1))?.checked_sub(offset)?, offset))
    }

    /// The steps from a corner to the points that determine a polynomial of degree two, with products of different
    /// symbols.
    fn steps(count: usize) -> Vec<Vec<usize>> {
        let symbols = 0..count;
        let pairs = symbols.clone().flat_map(|i| (i..count).map(move |j| vec![i, j]));
        let products = (0..1usize << count).filter(|chosen| chosen.count_ones() > 2);
        let products = products.map(|chosen| (0..count).filter(|i| (chosen >> i) & 1 == 1).collect());
        [vec![]].into_iter().chain(symbols.map(|i| vec![i])).chain(pairs).chain(products).collect()
    }

    /// Returns the points of these [`steps`](Size::steps).
    pub fn grid(corner: &[usize]) -> Vec<Vec<usize>> {
        let points = Size::steps(corner.len()).into_iter().map(|steps| {
            let mut point = corner.to_vec();
            steps.into_iter().for_each(|number| point[number] += 1);
            point
        });
        points.collect()
    }

    /// Returns the polynomial with these values on the [`grid`](Size::grid); `None` if its coefficients are not
    /// integers.
    ///
    /// It is Newton's polynomial: the sum over all steps of the difference of the step times `x (x - 1) / 2` for two
    /// steps of one symbol, or `x y z` for different symbols, counted from the corner.
    pub fn from_values(corner: &[usize], values: &[i64]) -> Option<Size> {
        let grid_steps = Size::steps(corner.len());
        let mut sum = Size::default();
        for steps in &grid_steps {
            // Inclusion and exclusion over the subsets of the steps.
            let mut difference = 0i64;
            for chosen in 0..1usize << steps.len() {
                let part: Vec<usize> = (0..steps.len()).filter(|i| (chosen >> i) & 1 == 1).map(|i| steps[i]).collect();
                let value = values[grid_steps.iter().position(|known| *known == part)?];
                let sign = if (steps.len() - part.len()).is_multiple_of(2) { 1 } else { -1 };
                difference = difference.checked_add(value.checked_mul(sign)?)?;
            }
            let mut offset = 0;
            let mut term = match steps[..] {
                // The product of two steps of one symbol is even.
                [i, j] if i == j && difference % 2 != 0 => return None,
                [i, j] if i == j => Size::constant(difference / 2),
                _ => Size::constant(difference),
            };
            for (i, &number) in steps.iter().enumerate() {
                offset = if i > 0 && steps[i - 1] == number { offset + 1 } else { 0 };
                let start = i64::try_from(corner[number]).ok()?.checked_add(offset)?;
                term = term.times(&Size::symbol(number).plus(Size::constant(-start))?)?;
            }
            sum = sum.plus(term)?;
        }
        Some(sum)
    }
}

/// `factor` times a size; `None` if it exceeds 64 bits.
fn times_size(factor: i64, size: usize) -> Option<i64> {
    factor.checked_mul(i64::try_from(size).ok()?)
}

/// The values with `x` for the unknown ones.
fn filled(values: &[Option<usize>], x: usize) -> Vec<usize> {
    values.iter().map(|value| value.unwrap_or(x)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_written_and_found_from_values() {
        let names = ["b".to_owned(), "s".to_owned()];
        let texts = ["b", "2*b + 1", "b*s", "s - b", "-s + 3", "3*b*b + 2*b*s - 4", "0", "12"];
        for corner in [[1, 1], [2, 7]] {
            for text in texts {
                let size = Size::parse(text, &names).expect(text);
                assert_eq!(Size::parse(&size.text(&names), &names).as_ref(), Some(&size));
                let values: Vec<i64> = Size::grid(&corner).iter().map(|at| size.at(at).expect("small")).collect();
                assert_eq!(Size::from_values(&corner, &values), Some(size), "{text}");
            }
        }
        let names4 = ["a", "b", "c", "d"].map(str::to_owned);
        for text in ["a*b*c*d + 3*a*b*c - b*c*d", "2*a*b*d + c*c - 7", "a*c*d"] {
            let size = Size::parse(text, &names4).expect(text);
            let values: Vec<i64> = Size::grid(&[2, 5, 3, 9]).iter().map(|at| size.at(at).expect("small")).collect();
            assert_eq!(Size::from_values(&[2, 5, 3, 9], &values), Some(size), "{text}");
        }
        let size = Size::parse("2*b*s + 1", &names).expect("a size");
        assert_eq!((size.text(&names).as_str(), size.at(&[3, 4])), ("2*b*s + 1", Some(25)));
        assert_eq!(size.linear(&[Some(3), None]), Some((1, 6, 1)));
        assert_eq!((size.linear(&[None, None]), size.linear(&[Some(1), Some(1)])), (None, None));
        assert!(["", "b +", "b s", "2.5*b", "t", "b**2", "b/2"].iter().all(|text| Size::parse(text, &names).is_none()));
        assert_eq!(Size::from_values(&[1], &[1, 3, 6]), None, "triangular numbers");
        assert_eq!(size.at(&[usize::MAX, 2]), None);
    }
}
