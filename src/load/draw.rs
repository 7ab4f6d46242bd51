//! Numbers of a wanted distribution, out of a generator's even ones.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// A normal deviate (Box and Muller).
pub(super) fn normal(generator: &mut ChaCha8Rng) -> f64 {
    let (one, two): (f64, f64) = (1.0 - generator.random::<f64>(), generator.random());
    (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos()
}

/// An exponential deviate of mean 1.
pub(super) fn exponential(generator: &mut ChaCha8Rng) -> f64 {
    -(1.0 - generator.random::<f64>()).ln()
}

/// A gamma deviate of mean 1 and the given shape (Marsaglia and Tsang, 2000).
pub(super) fn gamma(shape: f64, generator: &mut ChaCha8Rng) -> f64 {
    // Below 1 their method does not hold: a deviate of one shape more is brought down by a power of an even one.
    let (above, scale) = match shape < 1.0 {
        true => (shape + 1.0, (1.0 - generator.random::<f64>()).powf(1.0 / shape)),
        false => (shape, 1.0),
    };
    let d = above - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let deviate = normal(generator);
        let cube = (1.0 + c * deviate).powi(3);
        if cube <= 0.0 {
            continue;
        }
        let even = 1.0 - generator.random::<f64>();
        if even.ln() < 0.5 * deviate * deviate + d - d * cube + d * cube.ln() {
            return d * cube * scale / shape;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn deviates_have_the_mean_and_the_spread_that_they_should() {
        for shape in [0.25, 0.5, 1.0, 4.0] {
            let mut generator = ChaCha8Rng::seed_from_u64(5);
            let all: Vec<f64> = (0..40_000).map(|_| gamma(shape, &mut generator)).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let variance = all.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / all.len() as f64;
            assert!((mean - 1.0).abs() < 0.03, "mean {mean} at {shape}");
            // The coefficient of variation of a gamma distribution is one over the root of its shape.
            let expected = 1.0 / shape.sqrt();
            assert!((variance.sqrt() / expected - 1.0).abs() < 0.05, "spread {} at {shape}", variance.sqrt());
        }
    }
}
