"""What a broker's listener answers: produce, fetch, offsets, metadata, administration."""
