"""What several methods share: kernel matrices plus noise, Nystrom statistics, kernel gradients."""
