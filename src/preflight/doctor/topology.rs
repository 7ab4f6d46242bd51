//! How GPUs are linked, as `nvidia-smi topo -m` draws it.

/// A link, the closer the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// NVLink; with more of them, all the better.
    Nv(std::cmp::Reverse<u32>),
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// The processor's own bridge.
    Phb,
    /// Between bridges of one processor.
    Node,
    /// Between processors.
    Sys,
}

impl Link {
    fn parse(word: &str) -> Option<Link> {
        Some(match word {
            "PIX" => Link::Pix,
            "PXB" => Link::Pxb,
            "PHB" => Link::Phb,
            "NODE" => Link::Node,
            "SYS" => Link::Sys,
            _ => Link::Nv(std::cmp::Reverse(word.strip_prefix("NV")?.parse().ok()?)),
        })
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Link::Nv(count) => write!(f, "{} NVLinks", count.0),
            Link::Pix => f.write_str("one PCIe switch"),
            Link::Pxb => f.write_str("several PCIe switches"),
            Link::Phb => f.write_str("the processor's PCIe bridge"),
            Link::Node => f.write_str("two bridges of one processor"),
            Link::Sys => f.write_str("the link between processors"),
        }
    }
}

/// The links of all pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Number by number; `None` on the diagonal, and where nothing was said.
    links: Vec<Vec<Option<Link>>>,
}

impl Topology {
    /// Reads the table; `None` if there is none in it.
    pub fn parse(text: &str) -> Option<Topology> {
        let lines: Vec<Vec<String>> = text.lines().map(|line| words(&without_escapes(line))).collect();
        let header = lines.iter().find(|line| line.first().is_some_and(|word| word == "GPU0"))?;
        let count = header.iter().take_while(|word| is_gpu(word)).count();
        let row = |number: usize| {
            let name = format!("GPU{number}");
            let line = lines.iter().find(|line| line.first() == Some(&name) && line.get(1).is_some_and(|c| !is_gpu(c)));
            let cells = line.map(|line| line[1..].iter().take(count).map(|cell| Link::parse(cell)).collect());
            cells.unwrap_or_else(|| vec![None; count])
        };
        Some(Topology { links: (0..count).map(row).collect() })
    }

    /// The link of two.
    pub fn link(&self, one: u32, other: u32) -> Option<Link> {
        *self.links.get(one as usize)?.get(other as usize)?
    }

    /// The worst link within a set; `None` where one is not known.
    pub fn worst(&self, set: &[u32]) -> Option<Link> {
        let mut worst = None;
        for (at, one) in set.iter().enumerate() {
            for other in &set[at + 1..] {
                worst = worst.max(Some(self.link(*one, *other)?));
            }
        }
        worst
    }

    /// The set of so many of these that is linked the closest; of equal ones the first.
    pub fn closest(&self, of: &[u32], count: usize) -> Option<Vec<u32>> {
        // More sets than this are not gone through: machines have eight.
        if of.len() > 16 || count > of.len() || count < 2 {
            return None;
        }
        let mut best: Option<(Link, Vec<u32>)> = None;
        for bits in 0_u32..1 << of.len() {
            if bits.count_ones() as usize != count {
                continue;
            }
            let set: Vec<u32> =
                of.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0).map(|(_, n)| *n).collect();
            let Some(worst) = self.worst(&set) else { continue };
            if best.as_ref().is_none_or(|(link, known)| (worst, &set) < (*link, known)) {
                best = Some((worst, set));
            }
        }
        best.map(|(_, set)| set)
    }
}

fn is_gpu(word: &str) -> bool {
    word.strip_prefix("GPU")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The header is underlined, also where nobody looks.
fn without_escapes(line: &str) -> String {
    let mut text = String::new();
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            let _ = chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made for this test, in the shape that the program has.
    const FOUR: &str = "\t\u{1b}[4mGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\u{1b}[0m\n\
        GPU0\t X \tSYS\tSYS\tNV4\t0-31\t0\nGPU1\tSYS\t X \tPHB\tSYS\t0-31\t0\n\
        GPU2\tSYS\tPHB\t X \tSYS\t32-63\t1\nGPU3\tNV4\tSYS\tSYS\t X \t32-63\t1\n\nLegend:\n\n  X    = Self\n";

    #[test]
    fn the_table_is_read_and_the_closest_are_found() {
        let topology = Topology::parse(FOUR).unwrap();
        assert_eq!(topology.link(0, 3), Some(Link::Nv(std::cmp::Reverse(4))));
        assert_eq!((topology.link(1, 2), topology.link(0, 0), topology.link(0, 9)), (Some(Link::Phb), None, None));
        assert_eq!(topology.worst(&[0, 1]), Some(Link::Sys));
        assert_eq!(topology.closest(&[0, 1, 2, 3], 2), Some(vec![0, 3]));
        assert_eq!(topology.closest(&[0, 1, 2], 2), Some(vec![1, 2]));
        assert_eq!((topology.closest(&[0], 2), Topology::parse("No devices")), (None, None));
    }

    #[test]
    fn more_nvlinks_are_closer_than_fewer_and_all_than_none() {
        let mut links = ["SYS", "NV4", "PIX", "NV18", "NODE"].map(|word| Link::parse(word).unwrap());
        links.sort();
        assert_eq!(links.map(|link| link.to_string())[..3], ["18 NVLinks", "4 NVLinks", "one PCIe switch"]);
    }
}
