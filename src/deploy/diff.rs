//! What differs between two texts, line by line, in the form that `diff -u` made known.

/// Lines around a difference that are shown too.
const CONTEXT: usize = 3;

/// One line of the comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    Same(&'a str),
    Gone(&'a str),
    Came(&'a str),
}

/// The differences from `before` to `after`; empty when there are none.
pub fn unified(before: &str, after: &str, before_name: &str, after_name: &str) -> String {
    let lines = compare(&before.lines().collect::<Vec<_>>(), &after.lines().collect::<Vec<_>>());
    let changed: Vec<usize> =
        lines.iter().enumerate().filter(|(_, line)| !matches!(line, Line::Same(_))).map(|(at, _)| at).collect();
    if changed.is_empty() {
        return String::new();
    }
    let mut text = format!("--- {before_name}\n+++ {after_name}\n");
    let mut at = 0;
    while at < changed.len() {
        let first = changed[at];
        let mut last = first;
        while at < changed.len() && changed[at] <= last + 2 * CONTEXT + 1 {
            last = changed[at];
            at += 1;
        }
        hunk(&lines, first.saturating_sub(CONTEXT), (last + CONTEXT + 1).min(lines.len()), &mut text);
    }
    text
}

fn hunk(lines: &[Line<'_>], from: usize, to: usize, text: &mut String) {
    // Of the text before are all lines but those that came, of the one after all but those that are gone.
    let count = |lines: &[Line<'_>], after: bool| {
        let of_it = |line: &&Line<'_>| match line {
            Line::Same(_) => true,
            Line::Came(_) => after,
            Line::Gone(_) => !after,
        };
        lines.iter().filter(of_it).count()
    };
    let range = |after: bool| {
        let length = count(&lines[from..to], after);
        let start = count(&lines[..from], after) + usize::from(length > 0);
        if length == 1 { start.to_string() } else { format!("{start},{length}") }
    };
    text.push_str(&format!("@@ -{} +{} @@\n", range(false), range(true)));
    for line in &lines[from..to] {
        let (mark, line) = match line {
            Line::Same(line) => (' ', line),
            Line::Gone(line) => ('-', line),
            Line::Came(line) => ('+', line),
        };
        text.push(mark);
        text.push_str(line);
        text.push('\n');
    }
}

/// By the longest common subsequence. Units and commands have tens of lines, so a table of all pairs is small.
fn compare<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<Line<'a>> {
    let mut longest = vec![vec![0_usize; after.len() + 1]; before.len() + 1];
    for i in (0..before.len()).rev() {
        for j in (0..after.len()).rev() {
            longest[i][j] = match before[i] == after[j] {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < before.len() || j < after.len() {
        if i < before.len() && j < after.len() && before[i] == after[j] {
            lines.push(Line::Same(before[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < before.len() && (j == after.len() || longest[i + 1][j] >= longest[i][j + 1]) {
            lines.push(Line::Gone(before[i]));
            i += 1;
        } else {
            lines.push(Line::Came(after[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_shown_with_its_surroundings() {
        let before = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm\nn\n";
        let after = before.replace("b\n", "B\n").replace("m\n", "m\nM\n");
        insta::assert_snapshot!(unified(before, &after, "installed", "new"), @r"
        --- installed
        +++ new
        @@ -1,5 +1,5 @@
         a
        -b
        +B
         c
         d
         e
        @@ -11,4 +11,5 @@
         k
         l
         m
        +M
         n
        ");
    }

    #[test]
    fn the_same_has_no_difference_and_nothing_has_all_lines() {
        assert_eq!(unified("a\n", "a\n", "x", "y"), "");
        assert_eq!(unified("", "a\nb\n", "x", "y"), "--- x\n+++ y\n@@ -0,0 +1,2 @@\n+a\n+b\n");
    }
}
