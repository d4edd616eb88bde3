"""Training: backward graphs (`gradient`), and their check by differences (`check`)."""
