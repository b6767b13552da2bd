"""What a run trains from weights, compared with what Hugging Face computes from them."""
