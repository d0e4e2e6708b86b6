//! The order in which the products of an [`einsum`](super::einsum()) of several arrays are computed.

/// The largest number of operands for which all orders are compared. The comparison takes `3ⁿ` steps.
pub(super) const MAX_OPERANDS: usize = 8;

/// A set of operands: bit `i` is operand `i`.
pub(super) type Set = usize;

/// The multiply-adds of the products so far, and the elements of their results.
type Cost = (f64, f64);

/// Returns the pairs of sets to multiply, in order. The order has the fewest multiply-adds; of several such orders, it has the smallest
/// results.
pub(super) fn search<L: Copy + Eq>(operands: &[&[L]], output: &[L], size: impl Fn(L) -> usize) -> Vec<[Set; 2]> {
    let sets = 1 << operands.len();
    // The product of a set has the labels that the output or an operand outside of the set needs.
    let labels: Vec<Vec<L>> = (0..sets).map(|set| product_labels(operands, output, set)).collect();
    let mut best: Vec<(Cost, Set)> = vec![((0.0, 0.0), 0); sets];
    for set in 1..sets {
        if set.is_power_of_two() {
            continue;
        }
        let result = elements(&labels[set], &size);
        // The first operand of the set is always on the left, so that each split is compared once.
        let first_operand = set & set.wrapping_neg();
        best[set] = ((f64::INFINITY, f64::INFINITY), first_operand);
        let mut part = (set - 1) & set;
        while part > 0 {
            if part & first_operand != 0 {
                let remainder = set ^ part;
                let mut loop_labels = labels[part].clone();
                loop_labels.extend(labels[remainder].iter().filter(|l| !labels[part].contains(l)));
                let ((part_flops, part_size), (remainder_flops, remainder_size)) = (best[part].0, best[remainder].0);
                let cost =
                    (part_flops + remainder_flops + elements(&loop_labels, &size), part_size + remainder_size + result);
                if cost < best[set].0 {
                    best[set] = (cost, part);
                }
            }
            part = (part - 1) & set;
        }
    }
    let mut products = Vec::new();
    collect(sets - 1, &best, &mut products);
    products
}

/// Adds the products of a set after the products of its parts.
fn collect(set: Set, best: &[(Cost, Set)], products: &mut Vec<[Set; 2]>) {
    if set.count_ones() > 1 {
        let part = best[set].1;
        collect(part, best, products);
        collect(set ^ part, best, products);
        products.push([part, set ^ part]);
    }
}

/// The labels of the set's operands that the output or an operand outside of the set has too.
fn product_labels<L: Copy + Eq>(operands: &[&[L]], output: &[L], set: Set) -> Vec<L> {
    let (inside, outside): (Vec<_>, Vec<_>) = operands.iter().enumerate().partition(|(i, _)| set >> i & 1 == 1);
    let mut labels = Vec::new();
    for label in inside.iter().flat_map(|(_, labels)| **labels) {
        let is_kept = output.contains(label) || outside.iter().any(|(_, labels)| labels.contains(label));
        if is_kept && !labels.contains(label) {
            labels.push(*label);
        }
    }
    labels
}

/// Returns the number of elements of an array with these labels.
fn elements<L: Copy>(labels: &[L], size: impl Fn(L) -> usize) -> f64 {
    labels.iter().map(|label| size(*label) as f64).product()
}

#[cfg(test)]
mod tests {
    use super::search;

    #[test]
    fn contractions_of_a_ring_are_split_in_halves() {
        // Six tensors of 48 × 4 × 48 in a ring: first both halves, and then their product.
        let ring: [&[u8]; 6] = [b"aAb", b"bBc", b"cCd", b"dDe", b"eEf", b"fFa"];
        let products = search(&ring, b"ABCDEF", |label: u8| if label.is_ascii_uppercase() { 4 } else { 48 });
        let [left, right] = products[products.len() - 1];
        assert_eq!((left.count_ones(), right.count_ones(), left | right), (3, 3, 0b11_1111));
    }

    #[test]
    fn contractions_with_vectors_multiply_no_matrices() {
        let operands: [&[u8]; 4] = [b"ab", b"bc", b"cd", b"d"];
        assert_eq!(search(&operands, b"a", |_| 100), [[0b100, 0b1000], [0b10, 0b1100], [0b1, 0b1110]]);
    }
}
