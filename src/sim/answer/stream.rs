//! An answer in pieces, each at its time.

use super::*;

impl Answer<'_, '_> {
    /// Sends a stream.
    pub(super) async fn stream(&mut self, mut slot: Slot) -> Result<(), Broken> {
        if self.is(FaultKind::ErrorInBody) {
            return self.error_in_body().await;
        }
        if self.engine.scenario.serve.buffer {
            self.held = Some(Vec::new());
        }
        self.record.entry.status = 200;
        self.out.extend_from_slice(STREAM_HEAD);
        let role = self.engine.scenario.serve.role_chunk;
        if role == RoleChunk::AtOnce {
            self.event(self.voice.role());
        }
        self.send(None).await?;
        if role == RoleChunk::WithToken {
            self.event(self.voice.role());
        }
        self.tokens_of_stream(&mut slot).await?;
        drop(slot);
        self.end_of_stream().await
    }

    async fn tokens_of_stream(&mut self, slot: &mut Slot) -> Result<(), Broken> {
        let plain = [self.voice.text(true, None), self.voice.text(false, None)];
        let mut due = self.start;
        let steps = std::mem::take(&mut self.plan.steps);
        if steps.is_empty() {
            let at_end = self.start + self.until_first();
            self.engine.pacer.until(at_end).await;
        }
        let (breaks_at, deadly) = (self.fault_at(), self.is_deadly());
        for (index, step) in steps.iter().enumerate() {
            due = self.step_due(index, *step, due, slot).await?;
            let from = self.tokens;
            self.count(*step, now());
            let last = index + 1 == steps.len();
            self.frames(from, last, &plain);
            if self.held.is_none() {
                let sent = self.sent_tokens(from);
                self.send(Some(sent)).await?;
            }
            if self.tokens >= breaks_at {
                if deadly {
                    self.engine.die();
                    std::future::pending::<()>().await;
                }
                self.break_off().await?;
            }
        }
        Ok(())
    }

    /// How many of the tokens since `from` are shown.
    fn sent_tokens(&self, from: u64) -> u32 {
        let shown = if self.hides_reasoning() { from.max(self.plan.reasoning) } else { from };
        u32::try_from(self.tokens.saturating_sub(shown)).unwrap_or(u32::MAX)
    }

    fn hides_reasoning(&self) -> bool {
        self.engine.scenario.serve.reasoning.as_ref().is_some_and(|reasoning| reasoning.hidden)
    }

    fn is_deadly(&self) -> bool {
        self.engine.scenario.serve.die.as_ref().is_some_and(|die| die.mid_stream == Some(self.record.entry.n))
    }

    /// Adds the events with the tokens since `from`: one, or two where reasoning ends among them.
    fn frames(&mut self, from: u64, last: bool, plain: &[Frame; 2]) {
        let border = self.plan.reasoning.clamp(from, self.tokens);
        let hidden = self.hides_reasoning();
        for (is_reasoning, begin, end) in [(true, from, border), (false, border, self.tokens)] {
            if begin == end || (is_reasoning && hidden) {
                continue;
            }
            let mut text = Vec::new();
            (begin..end).for_each(|index| self.plan.text.push(index, &mut text));
            if self.asked.route == Route::Generate {
                // SGLang's own endpoint says everything again each time.
                self.text.extend_from_slice(&text);
                text.clone_from(&self.text);
            }
            let mut escaped = Vec::with_capacity(text.len() + 8);
            escape(&text, &mut escaped);
            self.events += 1;
            let count = self.said_tokens(end);
            let filling = Filling {
                text: &escaped,
                count,
                total: self.voice.prompt_tokens + count,
                ms: self.last.saturating_sub(self.first.unwrap_or(self.last)) as f64 / 1e6,
            };
            let ends = last && end == self.tokens && self.voice.ends_with_text() && !self.is(FaultKind::NoEnd);
            let out = &mut self.out;
            if ends {
                let frame = self.voice.text(is_reasoning, Some(self.outcome_word()));
                http::chunk(&mut self.out, |out| frame.write(&filling, out));
            } else {
                http::chunk(out, |out| plain[usize::from(!is_reasoning)].write(&filling, out));
            }
        }
    }

    fn outcome_word(&self) -> &'static str {
        self.outcome().finish
    }

    /// Faults that come in the middle.
    async fn break_off(&mut self) -> Result<(), Broken> {
        match self.fault() {
            Some(FaultKind::ErrorInStream) => {
                let message = self.message("out of memory while decoding");
                self.event(Some(voice::error_event(self.engine.played(), 500, &message)));
                self.send(None).await?;
                self.fail();
                self.out.extend_from_slice(b"e\r\ndata: [DONE]\n\n\r\n");
                self.out.extend_from_slice(STREAM_END);
                self.flush().await?;
                Err(Broken(Then::Close))
            }
            Some(FaultKind::CutBody) => {
                self.flush().await?;
                Err(Broken(Then::Close))
            }
            Some(FaultKind::Reset) => {
                self.flush().await?;
                Err(Broken(Then::Reset))
            }
            Some(FaultKind::Hang) => {
                self.flush().await?;
                self.hang().await
            }
            Some(FaultKind::BadJson) => {
                http::chunk(&mut self.out, |out| out.extend_from_slice(b"data: {\"choices\":[{\"index\":0,\n\n"));
                self.flush().await?;
                self.plan.fault = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn fail(&mut self) {
        self.engine.counters.borrow_mut().failed += 1;
        self.record.counted = true;
    }

    /// Stays silent until the client goes.
    async fn hang(&mut self) -> Result<(), Broken> {
        self.connection.gone().await;
        Err(Broken(Then::Close))
    }

    async fn error_in_body(&mut self) -> Result<(), Broken> {
        let at = self.start + self.until_first();
        self.engine.pacer.until(at).await;
        let message = self.message("out of memory");
        let body = voice::error(self.engine.played(), 500, &message).to_string();
        self.record.entry.status = 200;
        self.connection.write(&http::answer(200, "application/json", "", body.as_bytes())).await?;
        self.fail();
        Ok(())
    }

    async fn end_of_stream(&mut self) -> Result<(), Broken> {
        let outcome = self.outcome();
        let serve = &self.engine.scenario.serve;
        let says_usage = serve.usage.to(self.asked.include_usage);
        if self.is(FaultKind::NoEnd) {
            self.out.extend_from_slice(STREAM_END);
            self.flush().await?;
            self.close(&outcome);
            return Ok(());
        }
        self.event(self.voice.finish(&outcome, self.tokens > 0, says_usage));
        if says_usage {
            self.event(self.voice.usage_event(&outcome));
        }
        if self.voice.says_done() {
            http::chunk(&mut self.out, |out| out.extend_from_slice(b"data: [DONE]\n\n"));
        }
        if self.is(FaultKind::HangAfterDone) {
            self.flush().await?;
            self.close(&outcome);
            return self.hang().await;
        }
        self.out.extend_from_slice(STREAM_END);
        self.flush().await?;
        self.close(&outcome);
        Ok(())
    }

    /// Adds an event.
    fn event(&mut self, document: Option<Value>) {
        if let Some(document) = document {
            let text = format!("data: {document}\n\n");
            http::chunk(&mut self.out, |out| out.extend_from_slice(text.as_bytes()));
        }
    }

    /// Writes what there is, in one go; `tokens` of it are noted in the ledger.
    async fn send(&mut self, tokens: Option<u32>) -> Result<(), Broken> {
        if self.out.is_empty() {
            return Ok(());
        }
        if let Some(held) = &mut self.held {
            held.append(&mut self.out);
            return Ok(());
        }
        let result = self.connection.write(&self.out).await;
        self.out.clear();
        let at = result?;
        if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
            self.record.entry.chunks.push((at, tokens));
        }
        Ok(())
    }

    /// Writes what there is, what was held back included.
    async fn flush(&mut self) -> Result<(), Broken> {
        let held = self.held.take();
        let tokens = held.as_ref().map(|_| self.sent_tokens(0));
        if let Some(mut held) = held {
            held.append(&mut self.out);
            self.out = held;
        }
        self.send(tokens).await
    }
}
