//! Shamir's secret sharing over GF(256), one polynomial a byte.
//!
//! A share is its index (1-255) followed by one byte for each byte of the secret. What must hold: the arithmetic
//! takes the same time whatever the secret is, so no table is indexed and no branch is taken on a secret byte.

use std::collections::BTreeSet;

use zeroize::Zeroizing;

use super::keyring::BarrierError;

/// The longest secret that can be split, in bytes.
const MAX_SECRET: usize = 1024;

/// Why shares cannot be made or put together.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShamirError {
    /// The numbers of shares and threshold make no sense.
    #[error("threshold must be from 1 to the number of shares, and 1 only with one share")]
    Numbers,
    /// A share is empty, has index 0, or differs in length from the others.
    #[error("a share is malformed")]
    Malformed,
    /// Two shares have the same index.
    #[error("a share was given twice")]
    Twice,
    /// The random source failed.
    #[error("the random source failed")]
    Random(#[from] BarrierError),
}

/// Splits `secret` into `shares` shares, of which any `threshold` give it back and fewer tell nothing.
pub fn split(secret: &[u8], shares: u8, threshold: u8) -> Result<Vec<Zeroizing<Vec<u8>>>, ShamirError> {
    if threshold == 0 || threshold > shares || (threshold == 1 && shares != 1) {
        return Err(ShamirError::Numbers);
    }
    if secret.is_empty() || secret.len() > MAX_SECRET {
        return Err(ShamirError::Malformed);
    }
    let mut out: Vec<_> = (1..=shares)
        .map(|x| {
            let mut share = Zeroizing::new(Vec::with_capacity(secret.len() + 1));
            share.push(x);
            share
        })
        .collect();
    let mut coefficients = Zeroizing::new(vec![0u8; usize::from(threshold)]);
    for byte in secret {
        random(&mut coefficients)?;
        if let Some(constant) = coefficients.first_mut() {
            *constant = *byte;
        }
        for (share, x) in out.iter_mut().zip(1..=shares) {
            share.push(evaluate(&coefficients, x));
        }
    }
    Ok(out)
}

/// Puts shares together. With too few, or foreign, shares the result is a wrong secret, not an error.
pub fn combine<S: AsRef<[u8]>>(shares: &[S]) -> Result<Zeroizing<Vec<u8>>, ShamirError> {
    let mut points = Vec::with_capacity(shares.len());
    let mut seen = BTreeSet::new();
    for share in shares {
        let (&x, ys) = share.as_ref().split_first().ok_or(ShamirError::Malformed)?;
        if x == 0 || ys.is_empty() {
            return Err(ShamirError::Malformed);
        }
        if !seen.insert(x) {
            return Err(ShamirError::Twice);
        }
        points.push((x, ys));
    }
    let length = points.first().ok_or(ShamirError::Malformed)?.1.len();
    if points.iter().any(|(_, ys)| ys.len() != length) {
        return Err(ShamirError::Malformed);
    }
    let mut secret = Zeroizing::new(vec![0u8; length]);
    for (i, (x, ys)) in points.iter().enumerate() {
        let weight = weight_at_zero(&points, i, *x);
        for (out, y) in secret.iter_mut().zip(*ys) {
            *out ^= multiply(*y, weight);
        }
    }
    Ok(secret)
}

/// The Lagrange basis polynomial of point `i` at 0. The indices are public.
fn weight_at_zero(points: &[(u8, &[u8])], i: usize, x: u8) -> u8 {
    let others = points.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, (other, _))| *other);
    others.fold(1, |weight, other| multiply(weight, multiply(other, inverse(other ^ x))))
}

/// Horner's rule, from the highest coefficient down.
fn evaluate(coefficients: &[u8], x: u8) -> u8 {
    coefficients.iter().rev().fold(0, |sum, c| multiply(sum, x) ^ c)
}

/// The product in GF(256) modulo x^8 + x^4 + x^3 + x + 1, by masks instead of branches.
const fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut product, mut bit) = (a, 0u8, 0);
    while bit < 8 {
        product ^= a & 0u8.wrapping_sub((b >> bit) & 1);
        a = (a << 1) ^ (0x1b & 0u8.wrapping_sub(a >> 7));
        bit += 1;
    }
    product
}

/// The inverse: the 254th power; 0 for 0.
const fn inverse(a: u8) -> u8 {
    // 254 = 2 + 4 + 8 + 16 + 32 + 64 + 128.
    let (mut power, mut product, mut i) = (a, 1u8, 0);
    while i < 7 {
        power = multiply(power, power);
        product = multiply(product, power);
        i += 1;
    }
    product
}

fn random(buffer: &mut [u8]) -> Result<(), ShamirError> {
    aws_lc_rs::rand::fill(buffer).map_err(|_| ShamirError::Random(BarrierError::Library))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_field_is_that_of_known_vectors() {
        // Products and inverses from the description of AES, FIPS 197 section 4.2.
        for (a, b, product) in
            [(0x57, 0x83, 0xc1), (0x57, 0x13, 0xfe), (0x53, 0xca, 0x01), (0, 7, 0), (1, 9, 9)]
        {
            assert_eq!(multiply(a, b), product, "{a:#x} * {b:#x}");
            assert_eq!(multiply(b, a), product);
        }
        assert_eq!(inverse(0x53), 0xca);
        assert_eq!(inverse(0), 0);
        for a in 1..=255u8 {
            assert_eq!(multiply(a, inverse(a)), 1, "{a}");
        }
    }

    #[test]
    fn fixed_shares_give_their_fixed_secret() {
        // The line 0x2a + 0x07 x, by hand: x=1 gives 0x2d, x=2 gives 0x24, x=3 gives 0x23.
        for pair in [[[1, 0x2d], [2, 0x24]], [[2, 0x24], [3, 0x23]], [[3, 0x23], [1, 0x2d]]] {
            assert_eq!(combine(&pair).unwrap().as_slice(), [0x2a]);
        }
        // The parabola 0x53 + 0xca x + 0x01 x^2: x=1, 2, 4.
        let parabola = |x: u8| [x, 0x53 ^ multiply(0xca, x) ^ multiply(x, x)];
        assert_eq!(combine(&[parabola(1), parabola(2), parabola(4)]).unwrap().as_slice(), [0x53]);
        assert_eq!(parabola(1), [1, 0x98]);
    }

    #[test]
    fn malformed_shares_are_refused() {
        assert_eq!(combine::<Vec<u8>>(&[]), Err(ShamirError::Malformed));
        assert_eq!(combine(&[vec![1]]), Err(ShamirError::Malformed));
        assert_eq!(combine(&[vec![0, 1]]), Err(ShamirError::Malformed));
        assert_eq!(combine(&[vec![1, 1], vec![2, 1, 1]]), Err(ShamirError::Malformed));
        assert_eq!(combine(&[vec![1, 1], vec![1, 2]]), Err(ShamirError::Twice));
        for (n, t) in [(0, 0), (1, 0), (1, 2), (3, 1)] {
            assert_eq!(split(b"x", n, t), Err(ShamirError::Numbers), "{t} of {n}");
        }
    }

    #[test]
    fn the_largest_numbers_work() {
        let shares = split(b"secret", 255, 255).unwrap();
        assert_eq!(combine(&shares).unwrap().as_slice(), b"secret");
        assert_ne!(combine(&shares[1..]).unwrap().as_slice(), b"secret");
    }

    proptest! {
        #[test]
        fn any_threshold_of_shares_is_enough_and_fewer_are_not(
            secret in prop::collection::vec(any::<u8>(), 32),
            threshold in 2u8..8,
            extra in 0u8..5,
            order in any::<prop::sample::Index>(),
        ) {
            let mut shares = split(&secret, threshold + extra, threshold).unwrap();
            let turn = order.index(shares.len());
            shares.rotate_left(turn);
            let enough = usize::from(threshold);
            let put_together = |n: usize| combine(&shares[..n]).unwrap().to_vec();
            prop_assert_eq!(&put_together(enough), &secret);
            prop_assert_eq!(&put_together(shares.len()), &secret);
            prop_assert_ne!(&put_together(enough - 1), &secret);
        }

        #[test]
        fn no_bytes_panic(shares in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6)) {
            let _ = combine(&shares);
        }
    }
}
