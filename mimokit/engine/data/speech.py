"""Spoken digits as log-mel frames, from recordings small enough for a laptop.

The package `captcha` ships one recording of every digit (one voice, 8 kHz, a quarter to a third of
a second). Each time a digit is spoken, its recording is distorted at random: faster or slower,
louder or softer, with noise.
"""

import functools
import wave
from importlib import resources
from importlib.resources.abc import Traversable

import numpy as np
import torch

SAMPLE_RATE = 8000
WINDOW = SAMPLE_RATE // 40
"""25 ms, as Whisper's."""
HOP = SAMPLE_RATE // 100
"""10 ms."""
FFT = 256
SLOWEST, FASTEST = 0.85, 1.2
DYNAMIC_RANGE = 8.0
"""Decades below the loudest band that count as silence (Whisper's clamp)."""


@functools.cache
def load_speech() -> tuple[np.ndarray, ...]:
    """Return the recordings of the digits 0 to 9: [samples] each, -1 to 1, 8 kHz."""
    folder = resources.files("captcha") / "data"
    return tuple(_read(folder / str(digit) / "default.wav") for digit in range(10))


def _read(path: Traversable) -> np.ndarray:
    with path.open("rb") as file, wave.open(file) as recording:
        if (recording.getframerate(), recording.getsampwidth()) != (SAMPLE_RATE, 1):
            raise ValueError(f"The recording {path.name} is not of 8 kHz and 8 bits.")
        raw = np.frombuffer(recording.readframes(-1), dtype=np.uint8)
    samples: np.ndarray = (raw.astype(np.float64) - 128.0) / 128.0
    return samples


def longest_frames() -> int:
    """Return the frames of the longest recording at the slowest speed."""
    longest = max(len(recording) for recording in load_speech())
    return frames_of(round(longest / SLOWEST))


def frames_of(samples: int) -> int:
    """Return the frames of a recording: one per hop, the first and last centred on its ends."""
    return samples // HOP + 1


def speak(digit: int, generator: np.random.Generator) -> np.ndarray:
    """Return a recording of a digit, distorted: [samples], -1 to 1."""
    recording = load_speech()[digit]
    speed = generator.uniform(SLOWEST, FASTEST)
    length = round(len(recording) / speed)
    heard = np.interp(
        np.linspace(0, len(recording) - 1, length), np.arange(len(recording)), recording
    )
    noise = generator.normal(0.0, 0.01, size=length)
    distorted: np.ndarray = np.clip(generator.uniform(0.5, 1.0) * heard + noise, -1.0, 1.0)
    return distorted


def log_mel(recording: np.ndarray, mel_bins: int) -> torch.Tensor:
    """Return log-mel frames: [mel bands, frames], about -1 to 1.

    Power per band on a logarithmic scale, cut off below the dynamic range, scaled as Whisper does:
    (log10 + 4) / 4.

    Args:
        recording: [samples], 8 kHz.
        mel_bins: bands between 0 and 4 kHz, equally wide in mel.
    """
    spectrum = torch.stft(
        torch.tensor(recording, dtype=torch.float32),
        n_fft=FFT,
        hop_length=HOP,
        win_length=WINDOW,
        window=torch.hann_window(WINDOW),
        return_complex=True,
    )
    bands = mel_filters(mel_bins) @ spectrum.abs().square()
    logarithm = bands.clamp(min=1e-10).log10()
    return (torch.maximum(logarithm, logarithm.max() - DYNAMIC_RANGE) + 4.0) / 4.0


@functools.cache
def mel_filters(mel_bins: int) -> torch.Tensor:
    """Return triangular filters [mel bands, FFT / 2 + 1]; their centres are equally far in mel.

    mel(f) = 2595 log10(1 + f / 700) (O'Shaughnessy 1987).
    """
    top = 2595.0 * np.log10(1.0 + SAMPLE_RATE / 2 / 700.0)
    edges = 700.0 * (10.0 ** (np.linspace(0.0, top, mel_bins + 2) / 2595.0) - 1.0)
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, FFT // 2 + 1)
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    return torch.tensor(np.clip(np.minimum(rising, falling), 0.0, None), dtype=torch.float32)


def padded(frames: torch.Tensor, length: int) -> torch.Tensor:
    """Pad [mel bands, frames] to a length with the quietest value."""
    missing = length - frames.shape[1]
    return torch.nn.functional.pad(frames, (0, missing), value=float(frames.min()))
