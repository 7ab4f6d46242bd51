//! An answer as one document.

use super::*;

impl Answer<'_, '_> {
    /// Computes all of it and sends it at once.
    pub(super) async fn whole(&mut self, mut slot: Slot) -> Result<(), Broken> {
        let mut due = self.start;
        let steps = std::mem::take(&mut self.plan.steps);
        if steps.is_empty() {
            let at_end = self.start + self.until_first();
            self.engine.pacer.until(at_end).await;
        }
        for (index, step) in steps.iter().enumerate() {
            due = self.step_due(index, *step, due, &mut slot).await?;
            self.count(*step, now());
        }
        drop(slot);
        self.events = 1;
        let outcome = self.outcome();
        match self.fault() {
            Some(FaultKind::Hang) => {
                self.connection.gone().await;
                return Err(Broken(Then::Close));
            }
            Some(FaultKind::Reset) => return Err(Broken(Then::Reset)),
            Some(FaultKind::ErrorInBody | FaultKind::ErrorInStream) => {
                let message = self.message("out of memory");
                let body = voice::error(self.engine.played(), 500, &message).to_string();
                self.record.entry.status = 200;
                self.connection.write(&http::answer(200, "application/json", "", body.as_bytes())).await?;
                self.close(&outcome);
                return Ok(());
            }
            _ => {}
        }
        let bytes = self.document(&outcome);
        self.record.entry.status = 200;
        if self.is(FaultKind::CutBody) {
            self.connection.write(&bytes[..bytes.len() - bytes.len() / 4]).await?;
            return Err(Broken(Then::Close));
        }
        let at = self.connection.write(&bytes).await?;
        if self.tokens > 0 {
            self.record.entry.chunks.push((at, u32::try_from(self.tokens).unwrap_or(u32::MAX)));
        }
        self.close(&outcome);
        if self.is(FaultKind::HangAfterDone) {
            self.connection.gone().await;
            return Err(Broken(Then::Close));
        }
        Ok(())
    }

    fn document(&mut self, outcome: &Outcome) -> Vec<u8> {
        let (mut text, mut reasoning) = (Vec::new(), Vec::new());
        for index in 0..self.tokens {
            let out = if index < self.plan.reasoning { &mut reasoning } else { &mut text };
            self.plan.text.push(index, out);
        }
        let hidden = self.engine.scenario.serve.reasoning.as_ref().is_none_or(|reasoning| reasoning.hidden);
        let shown = (!hidden).then(|| String::from_utf8_lossy(&reasoning).into_owned());
        // Whole answers say `usage` unless they never do.
        let says_usage = self.engine.scenario.serve.usage.to(true);
        // Bytes that are no UTF-8 take the place of a blank: a JSON value cannot hold them.
        let blank = super::super::frame::TEXT;
        let document = self.voice.whole(blank, shown.as_deref(), outcome, says_usage).to_string();
        let (before, after) = document.split_once(blank).unwrap_or((document.as_str(), ""));
        let mut body = before.as_bytes().to_vec();
        escape(&text, &mut body);
        body.extend_from_slice(after.as_bytes());
        if self.is(FaultKind::BadJson) {
            body.truncate(body.len() / 2);
        }
        http::answer(200, "application/json", "", &body)
    }
}
